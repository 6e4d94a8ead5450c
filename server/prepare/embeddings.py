"""Texts to embed, with what a model was trained to see before them."""

from __future__ import annotations

from engine.errors import FIELD, InvalidRequest
from server.prepare.field_names import FieldNames
from server.schemas.embeddings import EmbeddingRequest
from server.state import ServedModel

FIELD_NAMES = FieldNames({"prompt": "{text}", "input": "{text}"})
"""Names of the fields of embeddings, rerank and score by their roles. `text`: what the prompt at fault was made of."""
_MOST_NAMES = 16


def prompted(model: ServedModel, body: EmbeddingRequest) -> list[str | list[int]]:
    """The inputs, with the prompt or the instruction that the request asks for before each text. Raises InvalidRequest."""
    if body.prompt_name is None and body.instruction is None:
        return body.inputs
    param = "prompt_name" if body.instruction is None else "instruction"
    if not model.pooling.includes_prompt and (body.pooling or model.pooling.kind) == "mean":
        message = f"'{FIELD}' is not supported: this model's mean leaves the prompt out, and ours does not."
        raise InvalidRequest(message, param=param, code="unsupported_parameter")
    texts = []
    for one in body.inputs:
        if not isinstance(one, str):
            message = f"'{FIELD}' needs inputs given as text, not as token ids."
            raise InvalidRequest(message, param=param, code="invalid_value")
        if body.instruction is not None:
            texts.append(instructed(model, body.instruction, one))
        else:
            texts.append(_prompt(model, body.prompt_name or "") + one)
    return list(texts)


def instructed(model: ServedModel, instruction: str, text: str) -> str:
    """The text in the model's own form of a query with an instruction. Raises InvalidRequest if it has none."""
    form = model.prompts.instructed
    if form is None:
        message = (
            f"'{FIELD}' is not supported by this model: no prompt in its config_sentence_transformers.json has one. Write the "
            "instruction into the text."
        )
        raise InvalidRequest(message, param="instruction", code="unsupported_parameter")
    return f"{form[0]}{instruction}{form[1]}{text}"


def _prompt(model: ServedModel, name: str) -> str:
    prompts = model.prompts.by_name
    if name not in prompts:
        names = ", ".join(f"'{one[:50]}'" for one in list(prompts)[:_MOST_NAMES]) or "none"
        message = f"This model has no prompt of the name in '{FIELD}'; its prompts: {names}."
        raise InvalidRequest(message, param="prompt_name", code="invalid_value")
    return prompts[name]
