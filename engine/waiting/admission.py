"""Admission: which requests can be served at all."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.errors import FIELD, ContextLengthExceeded, DeadlinePassed, InvalidRequest, Overloaded, field
from engine.kv.kv_cache_manager import KvCacheManager
from engine.refusal import Because
from engine.request import Request
from engine.waiting.queue import WaitingQueue
from executors.contract import ModelInfo, SamplingParams

_CAUTION = 1.1
"""Factor by which a wait may turn out longer than estimated. A request that is refused at once can go elsewhere; one that is
dropped at the end of its patience has lost that time."""


def check_min_tokens(min_tokens: int, max_tokens: int) -> None:
    """Raises InvalidRequest where more tokens are asked for than can come."""
    if min_tokens > max_tokens:
        message = f"'{FIELD}' is {min_tokens}, more than the {max_tokens} tokens to generate at most."
        raise InvalidRequest(message, "min_tokens", "invalid_value")


class Admission:
    """Checks a request before it is queued, so that everything queued can run to its end, if need be all alone."""

    def __init__(
        self, info: ModelInfo, kv: KvCacheManager, kv_capacity: int | None, config: EngineConfig
    ) -> None:
        self.info = info
        self.max_queued_seqs = config.max_queued_seqs
        self.max_queued_tokens = config.max_queued_tokens
        self.max_queue_wait = config.max_queue_wait
        capacities = [info.max_model_len]
        if kv.layout.paged:
            capacities.append(kv.capacity_tokens)
        if kv_capacity is not None:
            capacities.append(kv_capacity)
        self.max_model_len = min(capacities)
        """Most tokens one sequence may have, prompt and output."""

    def check(
        self, request: Request, queued: int, waiting: WaitingQueue, now: float, continues: bool = False,
        committed: int = 0,
    ) -> None:  # fmt: skip
        """Raises InvalidRequest, ContextLengthExceeded (naming the field), Overloaded or DeadlinePassed. `queued` sequences
        waited before the call came; `now` in seconds of the engine's clock. `continues`: part of a call that was let in, which
        is let in whole: a queue is longer than it may be by one call at most. How long the rest of it waits is its own doing, and
        its deadline is looked after while it waits. `committed`: so many tokens of its output exist already."""
        ids = request.prompt_token_ids
        if not len(ids):
            raise InvalidRequest("the prompt is empty", "prompt")
        if int(ids.min()) < 0 or int(ids.max()) >= self.info.logits_width:
            bad = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
            raise InvalidRequest(
                f"token id {bad} is outside the model's vocabulary (0..{self.info.logits_width - 1})",
                "prompt",
            )
        if committed > request.max_tokens and request.pooling is None:
            message = f"{committed} tokens of the output exist already, and {FIELD} is {request.max_tokens}"
            raise InvalidRequest(message, "max_tokens", "invalid_value")
        if request.pooling is None:
            self._check_output(request)
        elif len(ids) > self.max_model_len:
            message = f"this model's maximum context length is {self.max_model_len} tokens, and the input has {len(ids)}"
            raise ContextLengthExceeded(message, "input")
        if request.pooling not in (None, "logits", *self.info.poolings):
            raise InvalidRequest(f"this model has no pooling {request.pooling!r}", "pooling")
        if request.pooling == "logits":
            self._check_labels(request.label_ids)
        if request.second_segment is not None:
            self._check_segment(request.second_segment, len(ids))
        if not continues:
            self._check_queue(request, queued, waiting, now)

    def _check_queue(self, request: Request, queued: int, waiting: WaitingQueue, now: float) -> None:
        """Raises DeadlinePassed or Overloaded."""
        wait = waiting.wait(request)
        if request.context.deadline is not None and now + wait >= request.context.deadline:
            message = (
                f"this request cannot be started before its deadline: the queue is about {wait:.1f} s long"
            )
            limit = max(0.0, request.context.deadline - now)
            refusal = waiting.refusal(request, Because.DEADLINE, limit, wait)
            raise DeadlinePassed(message, waiting.retry_after(request, wait), refusal=refusal)
        if wait * _CAUTION > self.max_queue_wait:
            message = f"the queue is about {wait:.0f} s long, too long for the {self.max_queue_wait:g} s that a request may wait"
            refusal = waiting.refusal(request, Because.ESTIMATED_WAIT, self.max_queue_wait, wait)
            raise Overloaded(message, waiting.retry_after(request, wait), refusal=refusal)
        too_many = queued >= self.max_queued_seqs
        too_long = (
            waiting.count > 0 and waiting.tokens + len(request.prompt_token_ids) > self.max_queued_tokens
        )
        if not (too_many or too_long) or waiting.within_share(
            request, self.max_queued_seqs, self.max_queued_tokens
        ):
            return
        cause = f"{queued} requests" if too_many else f"requests of {waiting.tokens} tokens"
        because = Because.QUEUED_SEQS if too_many else Because.QUEUED_TOKENS
        limit = self.max_queued_seqs if too_many else self.max_queued_tokens
        refusal = waiting.refusal(request, because, limit, wait)
        raise Overloaded(f"{cause} are waiting already", waiting.retry_after(request, wait), refusal=refusal)

    def _check_output(self, request: Request) -> None:
        """What is to follow the prompt. Raises InvalidRequest or ContextLengthExceeded."""
        if not self.info.generates:
            raise InvalidRequest(
                "this model has no lm_head and generates nothing: it makes embeddings",
                "model",
                "unsupported_value",
            )
        if request.max_tokens < 1:
            raise InvalidRequest(f"{FIELD} must be at least 1", "max_tokens")
        self.check_length(len(request.prompt_token_ids), request.max_tokens)
        check_min_tokens(request.sampling.min_tokens, request.max_tokens)
        self._check_ids(request.sampling)
        self._check_anything_left(request.sampling)

    def _check_labels(self, label_ids: tuple[int, ...]) -> None:
        """Raises InvalidRequest for labels that the model does not have."""
        width = self.info.label_width
        if not label_ids or min(label_ids) < 0 or max(label_ids) >= width:
            head = "label" if self.info.num_labels else "vocabulary"
            message = f"labels {label_ids} are asked for, and this model's {head} logits are {width}"
            raise InvalidRequest(message, "model", "unsupported_value")

    def _check_segment(self, begin: int, num_tokens: int) -> None:
        """Raises InvalidRequest for a second text that the model cannot tell from the first, or that lies outside the prompt."""
        if self.info.token_types < 2:
            message = "this model does not tell the second text of a pair from the first"
            raise InvalidRequest(message, "model", "unsupported_value")
        if not 0 < begin < num_tokens:
            raise InvalidRequest(
                f"a second text begins at {begin}, and the prompt has {num_tokens} tokens", "prompt"
            )

    def _check_ids(self, sampling: SamplingParams) -> None:
        """Raises InvalidRequest naming the setting that holds an id the model does not have."""
        width = self.info.logits_width
        for name, ids in sampling.ids_by_name():
            if ids and max(ids) >= width:
                raise InvalidRequest(
                    f"{FIELD} holds {max(ids)}, but this model's ids end at {width - 1}", name
                )

    def _check_anything_left(self, sampling: SamplingParams) -> None:
        """Raises InvalidRequest where no token at all may come first."""
        if not sampling.edits_logits or not sampling.exhausted(self.info.logits_width):
            return
        name = "bad_words" if sampling.allowed_token_ids is None else "allowed_token_ids"
        raise InvalidRequest(
            f"'{FIELD}' leaves no token to generate: each one is a bad word, or would end the output before "
            f"'{field('min_tokens')}'.",
            name,
            "invalid_value",
        )

    def check_length(self, prompt_tokens: int, max_tokens: int | None) -> None:
        """Raises ContextLengthExceeded if they do not fit; `max_tokens` None asks for at least one token."""
        limit = self.max_model_len
        if prompt_tokens + 1 > limit:
            raise ContextLengthExceeded(
                f"this model's maximum context length is {limit} tokens, and the prompt has {prompt_tokens}: "
                "no room is left for output",
                "prompt",
            )
        if max_tokens is not None and prompt_tokens + max_tokens > limit:
            raise ContextLengthExceeded(
                f"this model's maximum context length is {limit} tokens: the prompt has {prompt_tokens} and {FIELD} "
                f"is {max_tokens}, together {prompt_tokens + max_tokens}",
                "max_tokens",
            )
