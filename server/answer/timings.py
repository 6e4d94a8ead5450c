"""The `timings` of an answer: llama.cpp's members, and what the story adds to them."""

from __future__ import annotations

import time

from engine.story import Story
from engine.text.generation import Generation
from server.schemas.answers.common import Timings


def timings(generation: Generation) -> Timings:
    """Times in milliseconds and token counts of a call that has its last token.

    `prompt_n` counts the prompt tokens that were computed, `cache_n` those that were found in the prefix cache. Members
    `prompt_*` describe the prefill (from admission to the first token), `predicted_*` the decode (the tokens after it).
    """
    story, usage, now = generation.request.context.story, generation.usage, time.monotonic()
    computed = usage.prompt_tokens - usage.cached_tokens
    choices = len(generation.request.prompts) * generation.request.n
    later = max(0, usage.completion_tokens - choices)
    prefill, decode = story.prefill_seconds(now) or 0.0, story.decode_seconds(now) or 0.0
    return {
        "prepare_ms": _prepare_ms(story),
        "queue_ms": _ms(story.queue_seconds(now) or 0.0),
        "ttft_ms": _ms(story.ttft_seconds() or 0.0),
        "cache_n": usage.cached_tokens,
        "prompt_n": computed,
        "prompt_ms": _ms(prefill),
        "prompt_per_token_ms": _ms(prefill / computed) if computed else 0.0,
        "prompt_per_second": _rate(computed, prefill),
        "predicted_n": usage.completion_tokens,
        "predicted_ms": _ms(decode),
        "predicted_per_token_ms": _ms(decode / later) if later else 0.0,
        "predicted_per_second": _rate(later, decode),
    }


def _prepare_ms(story: Story) -> float:
    return 0.0 if story.queued is None else _ms(story.queued - story.received)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 3) if seconds > 0 else 0.0
