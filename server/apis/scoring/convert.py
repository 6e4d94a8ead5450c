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
from server.prepare.chat_prompt import encode_pair, encode_text
from server.prepare.embeddings import instructed, leaves_out_prompt, usual
from server.prepare.prompts import Place, Truncation, fenced, input_ids, truncation_of
from server.state.server_state import ServedModel, ServerState
from server.templates.joined_pairs import JoinedPairs
from server.templates.pairs import PairPrompt

PairIds = tuple[tuple[int, ...], int | None]
"""Token ids of a pair's prompt, and where its second segment begins; None: it has one segment."""


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
    embedding model; 0: each prompt is a pair, whose label logits are scored. `similarity` and `unit_length`: see `Scoring`."""

    request: EmbeddingRequest
    num_first: int
    as_logits: bool = False
    similarity: str = "cosine"
    unit_length: bool = True

    def scores(self, vectors: Sequence[NDArray[np.float32]]) -> list[float]:
        """The score of each pair. Raises SequenceFailed for vectors with NaN or infinity."""
        if not all(np.isfinite(vector).all() for vector in vectors):
            raise SequenceFailed("the model's hidden states are not finite")
        if self.num_first:
            wide = [_unit(vector) if self.unit_length else vector.astype(np.float64) for vector in vectors]
            first, second = wide[: self.num_first], wide[self.num_first :]
            return [
                _similarity(self.similarity, first[i if len(first) > 1 else 0], vector)
                for i, vector in enumerate(second)
            ]
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
        ids, segments = tuple(ids for ids, _ in prompts), tuple(segment for _, segment in prompts)
        request = EmbeddingRequest(
            context, ids, "logits", model.adapter, how.label_ids, segments if any(segments) else ()
        )
        return PreparedScores(request, 0, how.as_logits or fields.use_activation is False)
    if not how.by_vectors:
        message = f"This model scores no texts: {how.reason}." + (
            " If it is a reranker that answers with a token, start the server with --classifier-from-token NO,YES."
            if model.info.generates
            else ""
        )
        raise InvalidRequest(message, param="model", code="unsupported_value")
    return await _vectors(state, model, fields, pairs, context)


async def _vectors(
    state: ServerState, model: ServedModel, fields: ScoreFields, pairs: Pairs, context: RequestContext
) -> PreparedScores:
    if fields.use_activation is False:
        message = f"'{FIELD}' cannot be false: this is an embedding model, whose scores compare vectors."
        raise InvalidRequest(message, param="use_activation", code="unsupported_value")
    truncation = _truncation(model, fields)
    if leaves_out_prompt(model):
        message = "This model puts a prompt before every text and leaves it out of the mean, which is not supported."
        raise InvalidRequest(message, param="model", code="unsupported_value")
    sides = []
    for texts, name in zip((pairs.first, pairs.second), pairs.names, strict=True):
        if name == pairs.names[0] and fields.instruction is not None:
            texts = [instructed(model, fields.instruction, text) for text in texts]
        else:
            texts = [usual(model, text) for text in texts]
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
    how = model.scoring
    return PreparedScores(request, len(sides[0]), similarity=how.similarity, unit_length=how.unit_length)


async def _pair_prompts(
    state: ServerState, model: ServedModel, fields: ScoreFields, pairs: Pairs
) -> tuple[PairIds, ...]:
    """The prompt of each pair."""
    form = model.pairs
    if form is None:
        message = (
            "This model has no prompt for a query and a document: start the server with a --chat-template that shows messages of "
            "the roles 'query' and 'document'."
        )
        raise InvalidRequest(message, param="model", code="no_chat_template")
    if isinstance(form, JoinedPairs) and fields.instruction is not None:
        message = f"'{FIELD}' is not supported by this model: a pair of a cross-encoder has no place for it."
        raise InvalidRequest(message, param="instruction", code="unsupported_parameter")
    truncation = _truncation(model, fields)

    def prompt(index: int) -> PairIds:
        if isinstance(form, JoinedPairs):
            return _joined(model, form, pairs, index, truncation)
        return _ids(model, form, fields, pairs, index, truncation), None

    def work() -> tuple[PairIds, ...]:
        return tuple(prompt(index) for index in range(len(pairs)))

    return await fenced(state, work, pairs.names[1], "to tokenize")


def _joined(
    model: ServedModel, form: JoinedPairs, pairs: Pairs, index: int, truncation: Truncation | None
) -> PairIds:
    """A pair as the tokenizer joins it; a truncated one loses the end of its document."""
    params = pairs.places[0](index if len(pairs.first) > 1 else 0), pairs.places[1](index)
    texts = pairs.first_of(index), pairs.second[index]
    pair = encode_pair(model, texts, params, bounded=truncation is None)
    _check_length(model, len(pair.ids), params[1], truncation)
    length = len(pair.ids) if truncation is None else truncation.length
    cut = form.cut(pair, length)
    if cut is None:
        raise _nothing_left(length, len(pair.ids) - pair.texts.count(1))
    return cut


def _ids(
    model: ServedModel, writes: PairPrompt, fields: ScoreFields, pairs: Pairs, index: int, truncation: Truncation | None
) -> tuple[int, ...]:  # fmt: skip
    """Token ids of one prompt; a truncated one loses the end of its document, and keeps what follows the document."""
    param = pairs.places[1](index)
    document = pairs.second[index]
    text = writes.text(pairs.first_of(index), document, fields.instruction)
    ids = encode_text(model, text, False, param, bounded=truncation is None)
    _check_length(model, len(ids), param, truncation)
    if truncation is None or len(ids) <= truncation.length:
        return tuple(ids)
    head, tail = _around(text, document)
    behind = encode_text(model, tail, False, param)
    before = len(encode_text(model, head, False, param, bounded=False))
    if ids[len(ids) - len(behind) :] != behind:  # a token that is part of both
        behind = []
    if truncation.length <= before + len(behind):
        raise _nothing_left(truncation.length, before + len(behind))
    return (*ids[: truncation.length - len(behind)], *behind)


def _check_length(model: ServedModel, length: int, param: str, truncation: Truncation | None) -> None:
    """Raises ContextLengthExceeded for a prompt that does not fit and is not to be cut."""
    if truncation is not None or length <= model.max_model_len:
        return
    message = (
        f"'{FIELD}' makes a prompt of {length} tokens, and this model's context has {model.max_model_len}: shorten it, or "
        "set 'truncate_prompt_tokens' to -1."
    )
    raise ContextLengthExceeded(message, param=param)


def _nothing_left(length: int, beside: int) -> InvalidRequest:
    message = (
        f"'{FIELD}' leaves {length} tokens, and the prompt has {beside} beside the "
        "document: none of the document would be left."
    )
    return InvalidRequest(message, param="truncate_prompt_tokens", code="invalid_value")


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


def _similarity(name: str, one: NDArray[np.float64], two: NDArray[np.float64]) -> float:
    """How alike two vectors are, by a name of SIMILARITIES."""
    match name:
        case "euclidean":
            return -float(np.linalg.norm(one - two))
        case "manhattan":
            return -float(np.abs(one - two).sum())
    return float(one @ two)


def _sigmoid(logit: float) -> float:
    """1 / (1 + exp(-logit)), without overflow. Of a difference of two logits, it is the softmax of the first."""
    small = float(np.exp(-abs(logit)))
    return 1 / (1 + small) if logit >= 0 else small / (1 + small)
