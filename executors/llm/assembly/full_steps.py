"""The largest steps that a configuration allows, with dummy contents. Their memory is measured before KV is sized."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from executors.contract.batch import SamplingParams, SequenceStart, UnifiedBatch
from executors.contract.config import ExecutorConfig
from executors.llm.lora.table import blank_name
from executors.llm.sampling.draft_rows import draft_rows
from executors.llm.step_arrays import whole_tables

_Settings = tuple[SamplingParams, ...]
_PLAIN: _Settings = (
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1.0, top_p=0.9),
    SamplingParams(temperature=1.0, top_k=40, min_p=0.01),
)
"""Settings of rows in turn that a device samples itself."""
_DESCRIBED: _Settings = (
    *(replace(one, logprobs=5) for one in _PLAIN),
    SamplingParams(temperature=0.0, repetition_penalty=1.1, logprobs=5),
)
"""Settings that take more memory: logprobs and penalties, in float32."""
_HOSTED: _Settings = tuple(replace(one, typical_p=0.9) for one in _DESCRIBED)
"""Settings that all need the host."""


def full_steps(
    config: ExecutorConfig, max_model_len: int, num_blocks: Sequence[int], most_tokens: int
) -> Iterator[UnifiedBatch]:
    """Yield steps at the limits of `config`. Each is to be run alone, by an executor that holds no sequence:

        as many prompts as there may be sequences, together all the tokens that a step may have, each sampled
        as many decodes, each at the end of a sequence as long as `most_tokens` in all and the model allow
        the last chunk of one sequence that long
        as many decodes with as many drafts as a launched step has room for, if there may be drafts
        as many prompts as in the first, each with drafts of the draft model, which reads as many tokens, if there is one

    The first two have settings that need little memory, much memory, and the host's help. If there may be LoRA adapters, all rows
    have some: those of `blank_name`.

    All blocks are among the first `num_blocks` of their group; they are overwritten several times and their contents are
    meaningless. `most_tokens` exceeds what KV will ever hold.
    """
    size, budget = config.attention.block_size, config.max_num_batched_tokens
    most = min(config.max_num_seqs, budget)
    prompts = np.minimum(max_model_len, budget // most + (np.arange(most) < budget % most))
    longest = max(1, min(max_model_len, most_tokens // most))
    alone = max(1, min(max_model_len, most_tokens))
    chunk = min(budget, alone)
    first, then = (0, prompts), (longest - 1, np.ones(most))
    steps = [(sizes, settings) for sizes in (first, then) for settings in (_PLAIN, _DESCRIBED, _HOSTED)]
    steps.append(((alone - chunk, np.full(1, chunk)), _PLAIN))
    for number, ((past, queries), settings) in enumerate(steps, 1):
        yield _step(
            number, past, queries.astype(np.int32), size, num_blocks, settings, config.optimization.max_loras
        )
    if config.optimization.max_drafts and longest > 1:
        most_each = min(config.optimization.max_drafts, longest - 1)
        drafts = _drafts(most, min(draft_rows(config.max_num_seqs, most_each), budget - most), most_each)
        step = _step(
            len(steps) + 1, longest - 1 - most_each, 1 + drafts, size, num_blocks, _PLAIN, config.optimization.max_loras
        )  # fmt: skip
        yield replace(step, num_draft_tokens=drafts)
    room = min(max(1, config.optimization.max_drafts), max_model_len - 1)
    if config.optimization.draft_model and room:
        queries = np.minimum(prompts, max_model_len - room).astype(np.int32)
        step = _step(
            len(steps) + 2, 0, queries, size, num_blocks, _PLAIN, config.optimization.max_loras, room
        )
        yield replace(step, drafts_wanted=np.full(most, room, np.int32))


def _drafts(count: int, total: int, most: int) -> np.ndarray:
    """int32 [count]: `total` drafts at most, up to `most` of each sequence in turn."""
    return np.clip(total - most * np.arange(count), 0, most).astype(np.int32)


def _step(
    number: int, past: int, queries: np.ndarray, block_size: int, num_blocks: Sequence[int], settings: _Settings,
    adapters: int, room: int = 0,
) -> UnifiedBatch:  # fmt: skip
    """Make a step of sequences that compute `queries` int32 [n] tokens after `past` others each; one token is sampled for
    each. They have blocks for `room` more."""
    count, longest = len(queries), past + int(queries.max()) + room
    width = math.ceil(longest / block_size)
    slots = np.arange(count, dtype=np.int32)
    prompt, none = np.zeros(longest, np.int32), np.empty(0, np.int32)
    # Sequences differ in where they begin, so that they do not all write one block as long as there are several.
    tables = [((slots[:, None] + np.arange(width)) % most).astype(np.int32) for most in num_blocks]
    return UnifiedBatch(
        epoch=0,
        step_id=number,
        seq_ids=slots.astype(np.int64) + 1,
        slots=slots,
        num_q_tokens=queries,
        pos_offsets=np.full(count, past, np.int32),
        is_final_chunk=np.ones(count, np.bool_),
        num_draft_tokens=np.zeros(count, np.int32),
        token_ids=np.zeros(queries.sum(), np.int32),
        starts=tuple(
            SequenceStart(
                slot + 1, slot, prompt, none, settings[slot % len(settings)],
                adapter=blank_name(slot % adapters) if adapters else None,
            )
            for slot in slots.tolist()
        ),
        tables=whole_tables(slots, tables),
    )  # fmt: skip
