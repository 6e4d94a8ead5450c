"""From pairs of texts to what the engine computes: prompts whose last token is scored, or the texts themselves, to compare
their embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.errors import FIELD, ContextLengthExceeded, InvalidRequest, SequenceFailed
from engine.request import RequestContext
from engine.text.embedding import EmbeddingRequest
from server.apis.scoring.schema import MAX_TOTAL_CHARACTERS, ScoreFields
from server.prepare.chat_prompt import encode_text
from server.prepare.embeddings import instructed
from server.prepare.prompts import Place, Truncation, fenced, input_ids, truncation_of
from server.state.server_state import ServedModel, ServerState
from server.templates.pairs import PairPrompt

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs to score: `first` has one text, which is paired with each of `second`, or as many as that. `names`: of the fields
    that hold them. `places`: the paths of the texts of both sides."""

    first: Sequence[str]
    second: Sequence[str]
    names: tuple[str, str]
    places: tuple[Place, Place]

    def __len__(self) -> int:
        return len(self.second)

    def first_of(self, index: int) -> str:
        """The first text of a pair."""
        return self.first[index if len(self.first) > 1 else 0]


@dataclass(frozen=True, slots=True)
class PreparedScores:
    """The engine's request, and how its vectors become scores. `num_first`: number of its prompts that are first texts, of an
    embedding model; 0: each prompt is a pair, whose label logits are scored."""

    request: EmbeddingRequest
    num_first: int
    as_logits: bool = False

    def scores(self, vectors: Sequence[NDArray[np.float32]]) -> list[float]:
        """The score of each pair. Raises SequenceFailed for vectors with NaN or infinity."""
        if not all(np.isfinite(vector).all() for vector in vectors):
            raise SequenceFailed("the model's hidden states are not finite")
        if self.num_first:
            unit = [_unit(vector) for vector in vectors]
            first, second = unit[: self.num_first], unit[self.num_first :]
            return [float(first[i if len(first) > 1 else 0] @ vector) for i, vector in enumerate(second)]
        logits = [float(v[0]) - (float(v[1]) if len(v) > 1 else 0.0) for v in vectors]
        return logits if self.as_logits else [_sigmoid(one) for one in logits]


async def prepare_scores(
    state: ServerState, model: ServedModel, fields: ScoreFields, pairs: Pairs, context: RequestContext
) -> PreparedScores:
    """What the engine is to compute. Raises InvalidRequest."""
    total = sum(map(len, pairs.second)) + sum(len(pairs.first_of(i)) for i in range(len(pairs)))
    if total > MAX_TOTAL_CHARACTERS:
        message = (
            f"The prompts have {total} characters, '{pairs.names[0]}' counted with each of '{FIELD}'; at most "
            f"{MAX_TOTAL_CHARACTERS} are allowed in one request."
        )
        raise InvalidRequest(message, param=pairs.names[1], code="invalid_value")
    how = model.scoring
    if how.label_ids:
        prompts = await _pair_prompts(state, model, fields, pairs)
        request = EmbeddingRequest(context, prompts, "logits", model.adapter, how.label_ids)
        return PreparedScores(request, 0, fields.use_activation is False)
    if not how.by_vectors:
        message = (
            f"This model scores no texts: {how.reason}. If it is a reranker that answers with a token, start the server with "
            "--classifier-from-token NO,YES."
        )
        raise InvalidRequest(message, param="model", code="unsupported_value")
    return await _vectors(state, model, fields, pairs, context)


async def _vectors(
    state: ServerState, model: ServedModel, fields: ScoreFields, pairs: Pairs, context: RequestContext
) -> PreparedScores:
    if fields.use_activation is False:
        message = f"'{FIELD}' cannot be false: this is an embedding model, whose scores are cosines."
        raise InvalidRequest(message, param="use_activation", code="unsupported_value")
    truncation = _truncation(model, fields)
    sides = []
    for texts, name in zip((pairs.first, pairs.second), pairs.names, strict=True):
        if name == pairs.names[0] and fields.instruction is not None:
            texts = [instructed(model, fields.instruction, text) for text in texts]
        sides.append(
            await input_ids(
                state,
                model,
                texts,
                name,
                place=pairs.places[name == pairs.names[1]],
                truncation=truncation,
                longest=model.max_model_len,
            )
        )
    assert model.pooling.kind is not None  # or the model would not score
    request = EmbeddingRequest(context, (*sides[0], *sides[1]), model.pooling.kind, model.adapter)
    return PreparedScores(request, len(sides[0]))


async def _pair_prompts(
    state: ServerState, model: ServedModel, fields: ScoreFields, pairs: Pairs
) -> tuple[tuple[int, ...], ...]:
    """Token ids of each pair's prompt."""
    writes = model.pairs
    if writes is None:
        message = (
            "This model has no prompt for a query and a document: start the server with a --chat-template that shows messages of "
            "the roles 'query' and 'document'."
        )
        raise InvalidRequest(message, param="model", code="no_chat_template")
    truncation = _truncation(model, fields)

    def work() -> tuple[tuple[int, ...], ...]:
        return tuple(_ids(model, writes, fields, pairs, i, truncation) for i in range(len(pairs)))

    return await fenced(state, work, pairs.names[1], "to tokenize")


def _ids(
    model: ServedModel, writes: PairPrompt, fields: ScoreFields, pairs: Pairs, index: int, truncation: Truncation | None
) -> tuple[int, ...]:  # fmt: skip
    """Token ids of one prompt; a truncated one loses the end of its document, and keeps what follows the document."""
    param = pairs.places[1](index)
    document = pairs.second[index]
    text = writes.text(pairs.first_of(index), document, fields.instruction)
    ids = encode_text(model, text, False, param, bounded=truncation is None)
    if truncation is None and len(ids) > model.max_model_len:
        message = (
            f"'{FIELD}' makes a prompt of {len(ids)} tokens, and this model's context has {model.max_model_len}: shorten it, or "
            "set 'truncate_prompt_tokens' to -1."
        )
        raise ContextLengthExceeded(message, param=param)
    if truncation is None or len(ids) <= truncation.length:
        return tuple(ids)
    head, tail = _around(text, document)
    behind = encode_text(model, tail, False, param)
    before = len(encode_text(model, head, False, param, bounded=False))
    if ids[len(ids) - len(behind) :] != behind:  # a token that is part of both
        behind = []
    if truncation.length <= before + len(behind):
        message = (
            f"'{FIELD}' leaves {truncation.length} tokens, and the prompt has {before + len(behind)} beside the "
            "document: none of the document would be left."
        )
        raise InvalidRequest(message, param="truncate_prompt_tokens", code="invalid_value")
    return (*ids[: truncation.length - len(behind)], *behind)


def _around(text: str, document: str) -> tuple[str, str]:
    """The parts of a prompt before and after its document; both empty if a template has changed the document's text."""
    for written in (document, document.strip()):
        if written and written in text:
            head, _, tail = text.rpartition(written)
            return head, tail
    return ("", "") if document.strip() else (text, "")


def _truncation(model: ServedModel, fields: ScoreFields) -> Truncation | None:
    """As `truncation_of`, from the right: the model sees the beginnings of documents."""
    truncation = truncation_of(fields, model, 0)
    return None if truncation is None else Truncation(truncation.length, from_right=True)


def _unit(vector: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = vector.astype(np.float64)
    length = float(np.linalg.norm(wide))
    return wide / length if length else wide


def _sigmoid(logit: float) -> float:
    """1 / (1 + exp(-logit)), without overflow. Of a difference of two logits, it is the softmax of the first."""
    small = float(np.exp(-abs(logit)))
    return 1 / (1 + small) if logit >= 0 else small / (1 + small)
