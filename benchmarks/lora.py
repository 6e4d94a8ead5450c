"""What LoRA adapters cost a running batch: output tokens and CPU seconds beside those of a server without LoRA.

    python -m benchmarks.lora [speed|load] [--shape qwen3-0.6b] [--streams 32] [--adapters 8] [--rank 16] [--rounds 3]

    off      a server without LoRA
    idle     a server with all adapters loaded, whose requests use none
    active   the same server, whose requests use all adapters in turn

speed: two engines run side by side, each with its executor in a process of its own, as in the server, without HTTP. Rounds of the
three alternate, and a figure is the median of its rounds. A round counts from the last of the first tokens to the first of
the last ones, so that all its steps have one row of each stream. CPU seconds are those of the engine and of the executors.

load: the longest time between two tokens of a running stream while an adapter of `--rank` is loaded, read beside the steps as
the engine does it, or by the call that loads it, which holds up the steps; and without a load.

Weights are random. A load of the machine that changes between rounds shows in their spread.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine import Result, engine, generate, prompts
from benchmarks.shapes import SHAPES
from engine.core.engine import EngineCore
from engine.mailbox import Mailbox
from engine.request import Request, RequestContext
from executors.contract import OptimizationConfig, SamplingParams
from executors.lora import pack
from tests.executors.lora.peft_files import write_peft

_GREEDY = SamplingParams(temperature=0.0)
_PROMPT = 32


def targets(shape: str) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of all linear layers of a shape, by the checkpoint's names."""
    config = SHAPES[shape]
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    sizes = {
        "self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }  # fmt: skip
    return {
        f"model.layers.{layer}.{name}": size
        for layer in range(config["num_hidden_layers"])
        for name, size in sizes.items()
    }


async def load(core: EngineCore, shape: str, count: int, rank: int, folder: Path) -> list[str]:
    """Write adapters and make them known. Returns their digests."""
    digests = []
    for seed in range(count):
        write_peft(folder / f"a{seed}", targets(shape), rank=rank, seed=seed)
        packed = await asyncio.to_thread(pack, folder / f"a{seed}", folder, rank)
        await core.add_adapter(packed.digest, str(packed.path))
        digests.append(packed.digest)
    return digests


@dataclass(slots=True)
class Window:
    """The time in which all streams run: `begun` when each has its first token, `ended` when the first has its last."""

    streams: int
    begun: tuple[float, float] | None = None
    ended: tuple[float, float] | None = None
    tokens: int = 0
    waiting: int = field(init=False)

    def __post_init__(self) -> None:
        self.waiting = self.streams

    def token(self, number: int, last: bool) -> None:
        """A stream's token has come."""
        if self.begun is not None and self.ended is None:
            self.tokens += 1
        if number == 0:
            self.waiting -= 1
            if not self.waiting:
                self.begun = time.perf_counter(), cpu_seconds()
        if last and self.ended is None:
            self.ended = time.perf_counter(), cpu_seconds()


def cpu_seconds() -> float:
    """Used by this process and its children, the living ones included."""
    ticks = 0
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


async def stream(
    core: EngineCore, prompt: np.ndarray, count: int, adapter: str | None, window: Window
) -> None:
    """Ask for `count` greedy tokens."""
    mailbox, seen = Mailbox(), 0
    request = Request(RequestContext("bench", core.clock()), prompt.astype(np.int32), _GREEDY, count)
    core.submit(replace(request, adapter=adapter), mailbox)
    while True:
        for delta in (await mailbox.take()).values():
            if delta.error is not None:
                raise delta.error
            for _ in delta.tokens:
                window.token(seen, seen == count - 1)
                seen += 1
            if delta.finish_reason is not None:
                return


async def measure(core: EngineCore, used: list[str | None], streams: int, count: int, seed: int) -> Result:
    """Tokens a second and CPU seconds per token of `streams` streams, which use the adapters in turn."""
    window = Window(streams)
    asked = prompts(streams, _PROMPT, seed)
    await asyncio.gather(
        *(stream(core, one, count, used[i % len(used)], window) for i, one in enumerate(asked))
    )
    assert window.begun is not None and window.ended is not None
    seconds, cpu = (end - begin for begin, end in zip(window.begun, window.ended, strict=True))
    return {"tokens_per_s": window.tokens / seconds, "cpu_s_per_token": cpu / window.tokens}


async def run(asked: argparse.Namespace) -> Result:
    """All rounds. Returns the medians, each round, and what is compared."""
    rounds: dict[str, list[Result]] = {"off": [], "idle": [], "active": []}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        off = await stack.enter_async_context(engine(asked.shape, asked.streams, prefix_caching=False))
        on = await stack.enter_async_context(
            engine(
                asked.shape,
                asked.streams,
                optimization=OptimizationConfig(max_loras=asked.adapters + 1),
                prefix_caching=False,
                max_loras=asked.adapters,
            )
        )
        digests = await load(on, asked.shape, asked.adapters, asked.rank, folder)
        ways: dict[str, tuple[EngineCore, list[str | None]]] = {
            "off": (off, [None]), "idle": (on, [None]), "active": (on, [*digests]),
        }  # fmt: skip
        for number in range(asked.rounds + 1):
            for name, (core, used) in ways.items():
                found = await measure(core, used, asked.streams, asked.tokens, number)
                if number:  # the first round warms up
                    rounds[name].append({**found, "load": os.getloadavg()[0]})
                    print(name, json.dumps(rounds[name][-1]), flush=True)
    medians = {
        name: {key: statistics.median(one[key] for one in found) for key in found[0]}
        for name, found in rounds.items()
    }
    off_, idle, active = (medians[name] for name in ("off", "idle", "active"))
    return {
        "medians": medians, "rounds": rounds,
        "active_throughput": active["tokens_per_s"] / off_["tokens_per_s"],
        "active_cpu": active["cpu_s_per_token"] / off_["cpu_s_per_token"],
        "idle_throughput": idle["tokens_per_s"] / off_["tokens_per_s"],
        "idle_cpu": idle["cpu_s_per_token"] / off_["cpu_s_per_token"],
    }  # fmt: skip


async def gaps_while_loading(asked: argparse.Namespace) -> Result:
    """Milliseconds: medians over the rounds of the longest gap, and the seconds that the loads took."""
    found: dict[str, list[float]] = {"calm": [], "beside": [], "between": []}
    seconds: dict[str, list[float]] = {name: [] for name in found}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        optimization = OptimizationConfig(max_loras=2, max_lora_rank=asked.rank)
        core = await stack.enter_async_context(
            engine(asked.shape, optimization=optimization, prefix_caching=False, max_loras=1)
        )
        write_peft(folder / "a", targets(asked.shape), rank=asked.rank)
        packed = await asyncio.to_thread(pack, folder / "a", folder, asked.rank)
        executor: Any = core.executor
        for number in range(asked.rounds):
            for name, longest in found.items():
                running = asyncio.create_task(generate(core, prompts(1, _PROMPT, number)[0], 100))
                await asyncio.sleep(1.0)
                began = time.perf_counter()
                if name == "beside":
                    await executor.prepare_adapter("a", str(packed.path), packed.digest)
                if name != "calm":
                    await executor.load_adapter("a", str(packed.path), packed.digest)
                ended = time.perf_counter()
                timed = await running
                inside = [
                    end - begin
                    for begin, end in zip(timed.times, timed.times[1:], strict=False)
                    if name == "calm" or (end > began and begin < ended)
                ]
                longest.append(1e3 * max(inside))
                seconds[name].append(ended - began)
                await executor.unload_adapter("a")
                print(name, f"{longest[-1]:.0f} ms, loaded in {ended - began:.2f} s", flush=True)
    return {
        "longest_gap_ms": {name: statistics.median(one) for name, one in found.items()},
        "load_seconds": {name: statistics.median(one) for name, one in seconds.items()},
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", default="speed", choices=("speed", "load"))
    parser.add_argument("--shape", default="qwen3-0.6b", choices=SHAPES)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=48, help="output tokens of a stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found = asyncio.run(run(asked) if asked.what == "speed" else gaps_while_loading(asked))
    print(json.dumps({key: value for key, value in found.items() if key != "rounds"}, indent=2))
    if asked.json:
        kept = {key: value for key, value in vars(asked).items() if key != "json"}
        asked.json.write_text(json.dumps({"settings": kept, **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
