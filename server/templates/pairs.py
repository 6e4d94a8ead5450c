"""Prompts of rerankers: a query and a document, as the model was trained to see them.

A chat template that knows the roles `query` and `document` writes them, as in vLLM and sentence-transformers; an instruction is
a message of role `system` and the variable `instruction`. Qwen3-Reranker's published template is that of a chat model, so its
format is written here. GGUF files of rerankers have a template of the name `rerank`, a text with `{query}` and `{document}`.
"""

from __future__ import annotations

import re
from typing import Protocol

from engine.errors import FIELD, InvalidRequest
from server.templates.template import ChatTemplate

QUERY, DOCUMENT = "query", "document"
_ROLES = tuple(re.compile(rf"""(['"]){role}\1""") for role in (QUERY, DOCUMENT))

_BEGIN = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_END = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_NAME = "rerank"
_PLACE = re.compile(rf"\{{({QUERY}|{DOCUMENT})\}}")
QWEN3_MARKS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
"""Tokens that Qwen3-Reranker's format needs."""


class PairPrompt(Protocol):
    """Writes the prompt of a query and a document."""

    def text(self, query: str, document: str, instruction: str | None) -> str:
        """The prompt. `instruction` None: the model's usual one. Raises InvalidRequest."""


class Qwen3Pairs:
    """The format of Qwen3-Reranker's model card."""

    def text(self, query: str, document: str, instruction: str | None) -> str:
        """See `PairPrompt`. A query that begins as the format does is taken as written in it by the client, who has put the
        format's end into the document, as vLLM's examples do."""
        if query.startswith(QWEN3_MARKS[0]):
            return query + document
        return f"{_BEGIN}<Instruct>: {instruction or _INSTRUCTION}\n<Query>: {query}\n<Document>: {document}{_END}"


class TemplatePairs:
    """A chat template that knows the two roles."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    def text(self, query: str, document: str, instruction: str | None) -> str:
        """See `PairPrompt`. Blocks, as `ChatTemplate.render`. Raises InvalidRequest, also if the template does not show the
        instruction."""
        messages = [{"role": QUERY, "content": query}, {"role": DOCUMENT, "content": document}]
        extra = {}
        if instruction is not None:
            messages.insert(0, {"role": "system", "content": instruction})
            extra = {"instruction": instruction} if "instruction" in self._template.variables else {}
        text = self._template.render(messages, extra=extra)
        if instruction is not None and instruction.strip() not in text:
            message = f"'{FIELD}' is not supported by this model: its template does not show it."
            raise InvalidRequest(message, param="instruction", code="unsupported_parameter")
        return text


class PlaceholderPairs:
    """A text in which the query and the document have their places, as llama.cpp writes and reads it."""

    def __init__(self, source: str) -> None:
        self._source = source

    def text(self, query: str, document: str, instruction: str | None) -> str:
        """See `PairPrompt`. Raises InvalidRequest for an instruction, which has no place."""
        if instruction is not None:
            message = (
                f"'{FIELD}' is not supported by this model: its file's template 'rerank' has no place for it."
            )
            raise InvalidRequest(message, param="instruction", code="unsupported_parameter")
        values = {QUERY: query, DOCUMENT: document}
        return _PLACE.sub(lambda match: values[match[1]], self._source)


def pair_prompt(template: ChatTemplate | None, marks: bool) -> PairPrompt | None:
    """What writes a model's pairs; None if its format is unknown. `marks`: whether its vocabulary has QWEN3_MARKS."""
    if template is not None and knows_pairs(template):
        return TemplatePairs(template)
    source = "" if template is None else template.sources.get(_NAME, "")
    qwen3 = Qwen3Pairs().text("{query}", "{document}", None)
    if source != qwen3 and {QUERY, DOCUMENT} <= set(_PLACE.findall(source)):
        return PlaceholderPairs(source)
    return Qwen3Pairs() if marks else None


def knows_pairs(template: ChatTemplate) -> bool:
    """Whether the template names both roles."""
    source = "\n".join(template.sources.values())
    return all(role.search(source) for role in _ROLES)
