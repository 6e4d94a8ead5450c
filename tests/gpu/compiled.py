"""Compiles all that `launches.py` records, for an H200, and says what came of it. No GPU is needed: Triton brings the assembler.

python -m tests.gpu.compiled [--json FILE] [--jobs 2] [--only PART_OF_A_NAME] [--architecture 89] [--of-each-size]

Exits with 1 where a launch spills more registers than `SPILLED` says.
"""

from __future__ import annotations

import argparse
import inspect
import json
import multiprocessing
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import triton
import triton.backends.nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.gpu.launches import HOPPER, Launch, functions, reached, record

SHARED_LIMIT = 227 * 1024
"""Bytes of shared memory that a program on Hopper may have."""
SPILLED: dict[tuple[int, str, str], int] = {}
"""Bytes of registers that launches may spill, by architecture, kernel and case: the list of those that are known to."""
ATTENTION = ("_split_kernel", "_extend_kernel", "_shared_extend_kernel")
"""Kernels whose products are in a function that they share, of those that steps launch on each architecture."""
_REGISTERS, _THREADS, _PROGRAMS = 65536, 2048, 32
"""Of a multiprocessor."""
_RESERVED = 1024
"""Bytes of shared memory that a program takes beside its own."""
_WIDTH = 100
_COUNTED = re.compile(
    r"bar\.sync\s+0;(?:(?!st\.global|bar\.sync).)*?atom\.global\.gpu\.acq_rel\.add", re.DOTALL
)
"""Nothing is written between the threads' meeting and the addition."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel as it would be launched. `registers` of a thread; `spilled` bytes of a thread's registers that lie in memory;
    `shared` bytes; `products`: how matrices are multiplied; `copies`: instructions that bring 16 bytes to shared memory past
    the registers; `ahead`: groups of those, at most, that are under way while others are used; `resident`: programs that a
    multiprocessor has room for; `counted`: atomic additions that hand on what a whole program wrote. `error`: why it did not
    compile."""

    kernel: str
    types: str
    constants: dict[str, Any]
    warps: int
    stages: int
    cases: list[str]
    seconds: float
    registers: int = 0
    spilled: int = 0
    shared: int = 0
    products: str = "-"
    counted: int = 0
    copies: int = 0
    ahead: int = 0
    resident: int = 0
    error: str | None = None


def compiled(launch: Launch, target: GPUTarget = HOPPER) -> Compiled:
    """What ptxas makes of it."""
    began = time.perf_counter()
    fixed = {name: launch.constant(name) for name, kind in launch.signature.items() if kind == "constexpr"}
    types = sorted({kind for kind in launch.signature.values() if kind[:3] in ("*fp", "*bf", "*i8")})
    about = {
        "kernel": launch.kernel,
        "types": " ".join(kind[1:] for kind in types),
        "constants": {name: value for name, value in fixed.items() if value is not None},
        "warps": launch.options["num_warps"],
        "stages": launch.options["num_stages"],
        "cases": launch.cases,
    }
    try:
        source = ASTSource(launch.function, launch.signature, launch.constants, launch.attrs)
        made = triton.compile(source, target=target, options=dict(launch.options))
    except Exception as error:  # of whatever kind: that is the finding
        return Compiled(**about, seconds=time.perf_counter() - began, error=f"{error!r:.1500}")
    ptx = made.asm["ptx"]
    registers, spilled = _resources(made.asm["cubin"])
    shared, threads = made.metadata.shared, 32 * about["warps"]
    kinds = [kind for kind in ("wgmma.mma_async", "mma.sync") if kind in ptx]
    return Compiled(
        **about,
        seconds=time.perf_counter() - began,
        registers=registers,
        spilled=spilled,
        shared=shared,
        products=" ".join(kind.partition(".mma")[0] for kind in kinds) or "-",
        counted=len(_COUNTED.findall(ptx)),
        ahead=max((int(count) for count in re.findall(r"cp\.async\.wait_group\s+(\d+)", ptx)), default=0),
        copies=len(re.findall(r"cp\.async\.cg\.shared\.global", ptx)),
        resident=min(
            _REGISTERS // (-(-registers // 8) * 8 * threads),
            (SHARED_LIMIT + _RESERVED) // (shared + _RESERVED),
            _THREADS // threads,
            _PROGRAMS,
        ),
    )


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes of its own that it has in memory: its stack, on which what is spilled lies."""
    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", said)
    assert found, said
    return int(found[1]), int(found[2]) + int(found[3])


def compile_all(launches: list[Launch], jobs: int, target: GPUTarget = HOPPER) -> list[Compiled]:
    """In so many processes."""
    # New ones: torch's threads do not live on in a fork.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(partial(compiled, target=target), launches))


def _plain(value: Any) -> Any:
    """A constant as it is printed: a word is itself, a flag 0 or 1."""
    return int(value) if isinstance(value, bool) else value


_SIZES = ("DIM_PAD", "ROWS", "TILE", "TILE_ROWS", "TILE_N", "TILE_K", "TILE_OUTPUTS", "TILE_RANKS", "GATED")
"""Constants that decide how much shared memory a product takes."""


def of_each_size(launches: list[Launch]) -> list[Launch]:
    """Those that multiply tiles of matrices, one for each size of tile and each combination of types."""
    found: dict[str, Launch] = {}
    for launch in launches:
        if "tl.dot" in inspect.getsource(launch.function.fn) or launch.kernel in ATTENTION:
            types = sorted(kind for kind in launch.signature.values() if kind.startswith("*"))
            sizes = [launch.constant(name) for name in _SIZES if name in launch.signature]
            found.setdefault(f"{launch.kernel} {set(types)} {sizes} {launch.options}", launch)
    return list(found.values())


def spills(found: list[Compiled], architecture: int) -> list[str]:
    """A line for each launch that spills more bytes than any of its cases may."""
    return [
        f"{one.kernel} [{one.types}] spills {one.spilled} bytes for sm_{architecture}: {', '.join(one.cases)}"
        for one in found
        if one.spilled
        > max((SPILLED.get((architecture, one.kernel, case), 0) for case in one.cases), default=0)
    ]


def table(found: list[Compiled]) -> str:
    """A line for each."""
    lines = ["regs spilled  shared  a SM  warps stages ahead  products     s  kernel"]
    for one in sorted(found, key=lambda one: (one.kernel, one.types, str(one.constants))):
        short = " ".join(f"{name}={_plain(value)}" for name, value in one.constants.items())
        what = f"{one.kernel} [{one.types}] {short}"
        lines.append(
            f"{one.registers:4} {one.spilled:7} {one.shared:7} {one.resident:5} {one.warps:6} {one.stages:6} {one.ahead:5}  "
            f"{one.products:10} {one.seconds:4.1f}  {what}"
        )
        lines.append(f"{'':65}{', '.join(one.cases)[:_WIDTH]}{'  ' + one.error if one.error else ''}")
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Print the table; with --json write {"missing": names of functions that no launch reaches, "kernels": [...]}. Raises
    SystemExit with the launches that spill."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--architecture", type=int, default=HOPPER.arch)
    parser.add_argument(
        "--of-each-size", action="store_true", help="of kernels with matrix products, one launch of each tile"
    )
    options = parser.parse_args(arguments)
    target = GPUTarget(HOPPER.backend, options.architecture, HOPPER.warp_size)
    launches = record(target=target)
    missing = sorted(set(functions()) - reached(launches))
    chosen = [launch for launch in launches if options.only in launch.kernel]
    found = compile_all(of_each_size(chosen) if options.of_each_size else chosen, options.jobs, target)
    print(table(found))
    if options.json:
        kernels = [asdict(one) for one in found]
        options.json.write_text(json.dumps({"missing": missing, "kernels": kernels}, indent=1), "utf-8")
    if lines := spills(found, options.architecture):
        sys.exit("\n".join(lines))


if __name__ == "__main__":
    main(sys.argv[1:])
