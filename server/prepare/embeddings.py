"""A body with texts to embed: the engine's request, what a model was trained to see before a text, the vector's form."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from engine.errors import FIELD, InvalidRequest, SequenceFailed
from engine.text.embedding import EmbeddingRequest as Asked
from server.http.call import Call
from server.prepare.engine_request import request_context
from server.prepare.field_names import FieldNames
from server.prepare.prompts import input_ids, place_in, truncation_of
from server.schemas.embeddings import EmbeddingRequest
from server.state.server_state import ServedModel, ServerState

FIELD_NAMES = FieldNames({"prompt": "{text}", "input": "{text}"})
"""Names of the fields of embeddings, rerank and score by their roles. `text`: what the prompt at fault was made of."""
_MOST_NAMES = 16


async def prepare_embedding(
    state: ServerState, call: Call, model: ServedModel, body: EmbeddingRequest
) -> Asked:
    """The engine request of a body. Raises InvalidRequest."""
    width = model.info.embedding_size
    if body.dimensions is not None and body.dimensions > width:
        # Their number is not told back: it may have thousands of digits.
        message = f"'dimensions' is more than this model's vectors have, which is {width}."
        raise InvalidRequest(message, param="dimensions", code="invalid_value")
    pooling = body.pooling or model.pooling.kind
    if pooling is None:
        message = (
            f"This model's own kind of embedding is not supported: {model.pooling.reason}. 'pooling' can ask for "
            f"{_one_of(model)} instead."
        )
        raise InvalidRequest(message, param="pooling", code="unsupported_value")
    if pooling not in model.info.poolings:
        message = f"'{FIELD}' is not supported by this model: its vectors are made by {_one_of(model)}."
        raise InvalidRequest(message, param="pooling", code="unsupported_value")
    prompts = await input_ids(
        state,
        model,
        prompted(model, body),
        "input",
        place=place_in("input", body.input),
        add_special_tokens=body.add_special_tokens is not False,
        truncation=truncation_of(body, model, 0),
        longest=model.max_model_len,
    )
    return Asked(request_context(call, "embd-", body, model), prompts, pooling, model.adapter)


def _one_of(model: ServedModel) -> str:
    *others, last = (f"'{kind}'" for kind in model.info.poolings)
    return f"{', '.join(others)} or {last}"


def shaped(vector: NDArray[np.float32], body: EmbeddingRequest) -> NDArray[np.float32]:
    """float32 [dimensions]: the vector, cut and normalised to length 1 as requested. Raises SequenceFailed for NaN or inf."""
    wide = vector.astype(np.float64)
    # Squares of float32 and their sum are finite in float64, so NaN and inf alone make a sum that is not.
    if not math.isfinite(square := float(wide.dot(wide))):
        raise SequenceFailed("the model's hidden states are not finite")
    if body.dimensions is not None:
        vector, wide = vector[: body.dimensions], wide[: body.dimensions]
        square = float(wide.dot(wide))
    if body.use_activation is False or not square:
        return vector
    wide /= math.sqrt(square)
    return wide.astype(np.float32)


def prompted(model: ServedModel, body: EmbeddingRequest) -> list[str | list[int]]:
    """The inputs, with the prompt or the instruction that the request asks for before each text. Raises InvalidRequest."""
    if body.prompt_name is None and body.instruction is None:
        if leaves_out_prompt(model, body.pooling) and any(isinstance(one, str) for one in body.inputs):
            message = (
                "This model puts a prompt before every text and leaves it out of the mean, which is not supported; "
                f"'{FIELD}' can be '' for no prompt."
            )
            raise InvalidRequest(message, param="prompt_name", code="unsupported_parameter")
        return [one if not isinstance(one, str) else usual(model, one) for one in body.inputs]
    if not body.prompt_name and "" not in model.prompts.by_name and body.instruction is None:
        return [one if not isinstance(one, str) else cased(model, one) for one in body.inputs]
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
            texts.append(cased(model, _prompt(model, body.prompt_name or "") + one))
    return list(texts)


def usual(model: ServedModel, text: str) -> str:
    """The text with the prompt that the model puts before every one, if it has such."""
    name = model.prompts.default
    return cased(model, text if name is None else model.prompts.by_name[name] + text)


def leaves_out_prompt(model: ServedModel, pooling: str | None = None) -> bool:
    """Whether the prompt before every text must not count in the vector, and would. `pooling`: as requested."""
    kind = pooling or model.pooling.kind
    return model.prompts.default is not None and not model.pooling.includes_prompt and kind == "mean"


def cased(model: ServedModel, text: str) -> str:
    """The text, in lower case if the model's texts are."""
    return text.lower() if model.pooling.lower_case else text


def instructed(model: ServedModel, instruction: str, text: str) -> str:
    """The text in the model's own form of a query with an instruction. Raises InvalidRequest if it has none."""
    form = model.prompts.instructed
    if form is None:
        message = (
            f"'{FIELD}' is not supported by this model: no prompt in its config_sentence_transformers.json has one. Write the "
            "instruction into the text."
        )
        raise InvalidRequest(message, param="instruction", code="unsupported_parameter")
    return cased(model, f"{form[0]}{instruction}{form[1]}{text}")


def _prompt(model: ServedModel, name: str) -> str:
    prompts = model.prompts.by_name
    if name not in prompts:
        names = ", ".join(f"'{one[:50]}'" for one in list(prompts)[:_MOST_NAMES]) or "none"
        message = f"This model has no prompt of the name in '{FIELD}'; its prompts: {names}."
        raise InvalidRequest(message, param="prompt_name", code="invalid_value")
    return prompts[name]
