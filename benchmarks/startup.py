"""Start and idleness of `cohort serve`: seconds from start to ready, memory of the executor, CPU of an idle server.

    python -m benchmarks.startup [--shape qwen3-0.6b] [--rounds 3] [--idle 20] [--flags "--quantization int8"] [--json FILE]

The model lies in the page cache: a first start, whose figures are not counted, has read it. Memory is what the executor's
process holds that is in no file, less that of a process that has imported the same and loaded nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.attention import cpu_name
from benchmarks.peers import models, servers
from tools.neutral_paths import neutral

_KV_BYTES = 256 << 20
"""All of it is made memory after a start."""
_EMPTY = """
import asyncio, os
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
from executors.llm import executor, loader
from executors.process import child
import torch
from executors.kernels.cpu import cpu_kernels
cpu_kernels()
torch.ones(64, 64, dtype=torch.bfloat16) @ torch.ones(64, 64, dtype=torch.bfloat16)
print(open("/proc/self/status").read())
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=float, default=20.0, help="seconds to watch an idle server [20]")
    parser.add_argument("--flags", default="", help="more flags of `cohort serve`, as one word")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    model = models.ensure(arguments.shape)
    side = servers.cohort("cohort", "--kv-cache-memory-bytes", str(_KV_BYTES), "--max-model-len", "2048",
                          *shlex.split(arguments.flags))  # fmt: skip
    runs = [_run(side, model, arguments.idle) for _ in range(arguments.rounds + 1)][1:]
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    empty = _anonymous(subprocess.run(
        [sys.executable, "-c", _EMPTY], capture_output=True, text=True, check=True
    ).stdout)  # fmt: skip
    found = {
        "ready_s": [run["ready_s"] for run in runs],
        "idle_cpu_share": [run["idle_cpu_share"] for run in runs],
        "weights_bytes": weights,
        "empty_process_bytes": empty,
        "executor_anonymous_bytes": [run["anonymous"] for run in runs],
        "kv_bytes": _KV_BYTES,
    }
    anonymous = statistics.median(run["anonymous"] for run in runs) - _KV_BYTES - empty
    found["anonymous_over_weights"] = anonymous / weights
    result: dict[str, Any] = {
        "shape": arguments.shape, "flags": arguments.flags, "cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)),
        **found,
    }  # fmt: skip
    print(
        f"ready after {statistics.median(found['ready_s']):.2f} s of {[f'{s:.2f}' for s in found['ready_s']]}"
    )
    print(f"idle: {100 * statistics.median(found['idle_cpu_share']):.2f}% of a CPU")
    print(f"memory beside KV and an empty process: {found['anonymous_over_weights']:.3f} times the weights")
    if arguments.json:
        arguments.json.write_text(json.dumps(neutral(result), indent=2) + "\n")


def _run(side: servers.Side, model: Path, idle: float) -> dict[str, float]:
    with servers.serving(side, model, Path(".reports/startup.log")) as (_, seconds):
        time.sleep(8)  # memory is still being prepared for a moment
        processes = {pid: title for pid, title in _processes() if title.startswith("cohort: ")}
        (executor,) = (pid for pid, title in processes.items() if "executor" in title)
        began = {pid: _cpu_seconds(pid) for pid in processes}
        time.sleep(idle)
        used = sum(_cpu_seconds(pid) - before for pid, before in began.items())
        status = Path(f"/proc/{executor}/status").read_text()
        return {
            "ready_s": seconds,
            "idle_cpu_share": used / idle,
            "anonymous": _anonymous(status),
        }


def _anonymous(status: str) -> int:
    """Bytes of memory that lie in no file."""
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))


def _processes() -> list[tuple[int, str]]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append((int(path.parent.name), path.read_text().replace("\0", " ")))
        except OSError:
            continue
    return found


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
