"""MemoryRequirements against measured memory: a fresh process loads a model, fills its KV and decodes.

Measured is VmHWM, the kernel's high-water mark of resident memory, over what torch takes before anything is loaded
(proc_pid_clear_refs(5), value 5). Weights are random in place, so no mapped file counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from executors.contract.status import MemoryRequirements
from tests.executors.checkpoints import QWEN3, write_config

# Weights of 92 MB in float32, KV of 64 kB a token: each part is large beside what cannot be foreseen.
MODEL = {
    **QWEN3, "vocab_size": 32768, "hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 16,
    "num_key_value_heads": 16, "head_dim": 64, "intermediate_size": 1024, "max_position_embeddings": 4096,
}  # fmt: skip
TOLERANCE = 0.2

RUN = """
import asyncio, json, sys
from pathlib import Path
import torch
from executors.testing.driver import GREEDY, Driver, Feed
from executors.contract.config import ExecutorConfig, ExecutorMemoryConfig, OptimizationConfig
from executors.llm.executor import LlmExecutor

BATCH, LENGTH = 4, 256
dtype, step_tokens = sys.argv[2], int(sys.argv[3])
config = ExecutorConfig(
    "llm", model=sys.argv[1], load_format="dummy", dtype=dtype, device="cpu", max_model_len=LENGTH, max_num_seqs=BATCH,
    max_num_batched_tokens=step_tokens, memory=ExecutorMemoryConfig(kv_cache_memory_bytes=1 << 30),
    optimization=OptimizationConfig(num_threads=1),
)

def kib(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))

async def main():
    # What the libraries take for themselves at their first product is not the model's.
    ones = torch.ones(64, 64, dtype=getattr(torch, dtype))
    torch.nn.functional.linear(ones, ones)
    Path("/proc/self/clear_refs").write_text("5")
    resident, anonymous = kib("VmRSS"), kib("RssAnon")
    executor = LlmExecutor.from_config(config)
    driver = await Driver.start(executor)
    seqs = [driver.add([7 * i + n for i in range(LENGTH - 2)], GREEDY) for n in range(BATCH)]
    while any(not seq.output for seq in seqs):
        share = step_tokens // BATCH
        await driver.step(*[Feed(seq, min(share, len(seq.tokens) - seq.num_computed)) for seq in seqs])
    await driver.decode(1, *seqs)
    memory, layers = executor.capabilities().memory, executor.info().num_layers
    print(json.dumps({
        "declared": memory.calculate_total_memory(BATCH, LENGTH, layers),
        "kept": memory.parameter_memory + BATCH * LENGTH * layers * memory.kv_memory_per_token_per_layer,
        "peak": 1024 * (kib("VmHWM") - resident), "anonymous": 1024 * (kib("RssAnon") - anonymous),
    }))

asyncio.run(main())
"""


@pytest.mark.long(every=2)
@pytest.mark.parametrize(("dtype", "step_tokens"), [("float32", 1024), ("bfloat16", 256)])
def test_total_memory_is_what_a_process_takes(dtype: str, step_tokens: int, tmp_path: Path) -> None:
    """All 1,024 tokens in one step, and in chunks."""
    command = [sys.executable, "-c", RUN, str(write_config(tmp_path, MODEL)), dtype, str(step_tokens)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=55)
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)
    ratio = numbers["declared"] / numbers["peak"]
    print(f"{dtype}, {step_tokens} tokens a step: {numbers}, declared {ratio:.3f} of measured")
    assert numbers["anonymous"] > 0.95 * numbers["kept"], "KV was not filled, or it is measured wrongly"
    assert 1 - TOLERANCE <= ratio <= 1 + TOLERANCE, numbers


def test_the_sum() -> None:
    """Activation memory is for the tokens of a step, KV memory for all."""
    memory = MemoryRequirements(1000, 10, 2, 50)
    assert memory.calculate_total_memory(3, 4, 5) == 1000 + 50 + 12 * 10 + 12 * 5 * 2
    capped = MemoryRequirements(1000, 10, 2, 50, max_batched_tokens=8)
    assert capped.calculate_total_memory(3, 4, 5) == 1000 + 50 + 8 * 10 + 12 * 5 * 2
    assert capped.calculate_total_memory(1, 4, 5) == 1000 + 50 + 4 * 10 + 4 * 5 * 2
