"""KV that sequences of a model with windows hold, and how many of them fit: the shape of Gemma 3 1B at 30,000 tokens.

    python -m benchmarks.window_memory [--tokens 30000] [--budget 2147483648] [--seqs 16] [--json FILE]

The layout of KV is that of the executor for this shape (26 layers, five of six with a window of 512 tokens, blocks of 16), with
the real sizes of keys and values and small matrices. The engine runs on a fake that computes nothing, so that only its accounting
is measured: blocks held by one sequence while it decodes, the most of all its steps, against what its layers can see: all tokens,
or the window, rounded up to blocks. Then as many sequences come as fit: before, with one group that keeps all tokens in all
layers, and with the executor's groups, in the same budget. Fails (exit code 1) beyond 1.05.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.grouped_echo import GroupedEcho
from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.mailbox import Mailbox
from engine.request import Request, RequestContext
from executors.contract import (
    ExecutorAttentionConfig,
    ExecutorConfig,
    ExecutorMemoryConfig,
    KvLayout,
    SamplingParams,
)
from executors.llm.executor import LlmExecutor

LIMIT = 1.05
LAYERS, PATTERN, WINDOW, BLOCK = 26, 6, 512, 16
_CONFIG: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "vocab_size": 256, "hidden_size": 64,
    "intermediate_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 256,
    "query_pre_attn_scalar": 256, "sliding_window": WINDOW, "sliding_window_pattern": PATTERN, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 131072, "hidden_activation": "gelu_pytorch_tanh", "torch_dtype": "bfloat16",
    "attention_bias": False, "rope_theta": 1000000.0, "eos_token_id": None, "bos_token_id": None,
}  # fmt: skip
_LAYER_BYTES = 2 * 2 * 256
"""Keys and values of a token in one layer, bfloat16."""
_STEP, _OUTPUT = 2048, 1200


@dataclass(frozen=True)
class Held:
    """Bytes of one sequence: `used` by group, `needed` by what its layers see."""

    windows: tuple[int | None, ...]
    used: tuple[int, ...]
    needed: int

    @property
    def ratio(self) -> float:
        """Used over needed, all groups."""
        return sum(self.used) / self.needed


def needed_bytes(tokens: int) -> int:
    """What the layers of a sequence of so many tokens see, rounded up to blocks."""
    full = LAYERS // PATTERN
    blocks = -(-tokens // BLOCK) * full + -(-min(tokens, WINDOW) // BLOCK) * (LAYERS - full)
    return blocks * BLOCK * _LAYER_BYTES


async def layout_of(budget: int, seqs: int, max_len: int) -> KvLayout:
    """That of the executor for this shape."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_CONFIG))
        executor = LlmExecutor.from_config(_executor_config(folder, budget, seqs, max_len))
        await executor.warmup()
        layout = executor.kv_layout()
        await executor.shutdown()
    return layout


def one_group(budget: int) -> KvLayout:
    """All layers keep all tokens."""
    block_bytes = LAYERS * _LAYER_BYTES * BLOCK
    return KvLayout.of(BLOCK, budget // block_bytes, block_bytes)


def _executor_config(model: str, budget: int, seqs: int, max_len: int) -> ExecutorConfig:
    return ExecutorConfig(
        "llm", model, load_format="dummy", device="cpu", dtype="bfloat16", max_num_seqs=seqs,
        max_num_batched_tokens=_STEP, max_model_len=max_len, attention=ExecutorAttentionConfig(block_size=BLOCK),
        memory=ExecutorMemoryConfig(kv_cache_memory_bytes=budget),
    )  # fmt: skip


@asynccontextmanager
async def engine(layout: KvLayout, seqs: int, max_len: int) -> AsyncIterator[EngineCore]:
    """On a fake with this layout."""
    config = ExecutorConfig(
        "echo", max_num_seqs=seqs, max_num_batched_tokens=_STEP, max_model_len=max_len,
        attention=ExecutorAttentionConfig(block_size=BLOCK),
    )  # fmt: skip
    limits = EngineConfig(max_num_seqs=seqs, max_num_batched_tokens=_STEP, max_queue_wait=3600, target_itl=0)
    core = EngineCore(GroupedEcho(config, layout), limits)
    await core.start()
    try:
        yield core
    finally:
        await core.stop()


def _submit(core: EngineCore, number: int, tokens: int) -> tuple[int, Mailbox]:
    """A sequence whose prompt no other one has: its id, and where its tokens come."""
    prompt = np.random.default_rng(number).integers(0, 1000, tokens).astype(np.int32)
    mailbox = Mailbox()
    greedy = SamplingParams(temperature=0.0)
    return core.submit(Request(RequestContext(str(number), 0.0), prompt, greedy, _OUTPUT), mailbox), mailbox


async def held(layout: KvLayout, tokens: int) -> Held:
    """Of one sequence, in the step beyond `tokens` in which the ratio is highest."""
    sizes = [group.bytes_per_block for group in layout.groups]
    worst: Held | None = None
    async with engine(layout, 1, tokens + 2 * _OUTPUT) as core:
        _, mailbox = _submit(core, 0, tokens - _OUTPUT // 2)
        done = False
        while not done:
            done = any(delta.finish_reason is not None for delta in (await mailbox.take()).values())
            views = core.sequences(1)
            if views and views[0].computed_tokens >= tokens:
                used = tuple(blocks * size for blocks, size in zip(used_blocks(core), sizes, strict=True))
                windows = tuple(group.window for group in layout.groups)
                one = Held(windows, used, needed_bytes(views[0].computed_tokens))
                worst = one if worst is None or one.ratio > worst.ratio else worst
    if worst is None:
        raise RuntimeError(f"the sequence was never seen beyond {tokens} tokens")
    return worst


def used_blocks(core: EngineCore) -> list[int]:
    """Blocks in tables, by group."""
    assert core._scheduler is not None
    kv = core._scheduler.kv
    holders = kv.groups if hasattr(kv, "groups") else [kv]
    return [holder.pool.num_used for holder in holders]


async def concurrent(layout: KvLayout, seqs: int, tokens: int) -> int:
    """How many sequences of so many tokens decode at once, of `seqs` that come together."""
    most = 0
    async with engine(layout, seqs, tokens + 2 * _OUTPUT) as core:
        ids, mailboxes = zip(
            *(_submit(core, number, tokens - _OUTPUT) for number in range(seqs)), strict=True
        )
        readers = [asyncio.create_task(_ended(mailbox)) for mailbox in mailboxes]
        while not any(reader.done() for reader in readers):
            await asyncio.sleep(0)
            views = core.sequences(seqs)
            most = max(most, sum(view.status == "running" and view.output_tokens > 0 for view in views))
        for reader, seq_id in zip(readers, ids, strict=True):
            reader.cancel()
            core.abort(seq_id)
        while core.sequences(1):  # noqa: ASYNC110  (nothing tells when the last one has left)
            await asyncio.sleep(0)
    return most


async def _ended(mailbox: Mailbox) -> None:
    while all(delta.finish_reason is None for delta in (await mailbox.take()).values()):
        pass


async def measure(tokens: int, budget: int, seqs: int) -> dict[str, Any]:
    """The record."""
    max_len = tokens + 2 * _OUTPUT
    layout = await layout_of(budget, seqs, max_len)
    found = await held(layout, tokens)
    return {
        "tokens": tokens,
        "budget": budget,
        "groups": [
            {"window": group.window, "blocks": group.num_blocks, "block_bytes": group.bytes_per_block, "sequence_bytes": used}
            for group, used in zip(layout.groups, found.used, strict=True)
        ],
        "needed_bytes": found.needed,
        "ratio": found.ratio,
        "concurrent_before": await concurrent(one_group(budget), seqs, tokens),
        "concurrent": await concurrent(layout, seqs, tokens),
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 if a sequence holds more than it may, or if the model's windows have no group."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=30_000)
    parser.add_argument("--budget", type=int, default=2 << 30, help="bytes of KV [2 GiB]")
    parser.add_argument("--seqs", type=int, default=16)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(argv)
    row = asyncio.run(measure(given.tokens, given.budget, given.seqs))
    for group in row["groups"]:
        print(
            f"window {group['window']}: {group['blocks']:,} blocks, one sequence holds {group['sequence_bytes']:,} bytes"
        )
    print(f"needed: {row['needed_bytes']:,} bytes; held over needed {row['ratio']:.3f}, at most {LIMIT}")
    print(
        f"sequences at once: {row['concurrent_before']} with one group, {row['concurrent']} with {len(row['groups'])}"
    )
    if given.json:
        given.json.write_text(json.dumps(row, indent=1) + "\n")
    return 1 if row["ratio"] > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
