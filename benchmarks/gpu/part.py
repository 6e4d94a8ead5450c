"""A part of `make gpu-check`: calls a function and writes each figure at once, so that a part that is killed keeps what it found.

    python -m benchmarks.gpu MODULE:FUNCTION [--device cpu --tiny] [--executor llm] ...

The function gets `Options` and a `Found`. Figures go, a JSON object a line, to the file that the variable GPU_FIGURES names,
or to stdout. The exit code is 0 for a part that ran to its end, 77 if what it needs is absent, 1 otherwise; the last line says
why.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import importlib
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FIGURES, LIMIT = "GPU_FIGURES", "GPU_LIMIT"
"""Variables: the file of figures, and the seconds after which the part is killed."""
ABSENT = 77
"""Exit code of a part that cannot be done here."""
_NOTE_BEFORE_END = 5.0
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl
"""Found beforehand: between fork and exec nothing may be loaded, for another thread may have held the loader's lock."""

Figures = dict[str, Any]
Found = Callable[[Figures], None]
"""Takes figures and writes them down at once."""


class NotRun(Exception):
    """Raised by a part that cannot be done here: what it needs is absent. Its text says what."""


class Failed(Exception):
    """Raised by a part that ran and found something wrong. Its text says what, in one line."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a part is told. `tiny`: the smallest shapes there are, which tells whether it works and nothing of speed."""

    device: str = "cuda"
    tiny: bool = False
    executor: str = "llm"
    mode: str = "process"
    block_size: int | None = None
    kv_cache_memory_bytes: int | None = None

    def arguments(self) -> list[str]:
        """As `add_options` reads them."""
        given = ["--device", self.device, "--executor", self.executor, "--mode", self.mode]
        given += ["--tiny"] if self.tiny else []
        given += ["--block-size", str(self.block_size)] if self.block_size else []
        if self.kv_cache_memory_bytes:
            given += ["--kv-cache-memory-bytes", str(self.kv_cache_memory_bytes)]
        return given


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of `Options`."""
    parser.add_argument(
        "--device", default="cuda", help="cuda, or cpu to try the programs (default: %(default)s)"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="the smallest shapes: shows that the programs work, no more"
    )
    parser.add_argument("--executor", default="llm", choices=("llm", "qwen3"))
    parser.add_argument(
        "--mode", default="process", choices=("process", "inline"), help="where the executor runs"
    )
    parser.add_argument("--block-size", type=int, help="tokens of a KV page (default: the executor's own)")
    parser.add_argument("--kv-cache-memory-bytes", type=int, help="default: sized by the executor")


def options_of(given: argparse.Namespace) -> Options:
    """See `add_options`."""
    return Options(
        given.device, given.tiny, given.executor, given.mode, given.block_size, given.kv_cache_memory_bytes
    )


def perform(target: str, options: Options, found: Found) -> tuple[int, str]:
    """Run one part; the exit code, and why it is not 0."""
    try:
        module, _, function = target.partition(":")
        getattr(importlib.import_module(module), function)(options, found)
    except NotRun as absent:
        return ABSENT, str(absent)
    except Failed as failed:
        return 1, str(failed)
    except Exception as error:
        traceback.print_exc()
        needs = "; `make gpu-wheels`, where there is a network, fetches what this needs beside torch"
        return 1, f"{type(error).__name__}: {error}" + (
            needs if isinstance(error, ModuleNotFoundError) else ""
        )
    return 0, ""


def end_with_parent() -> None:
    """Let the system kill this process when what started it ends, as by SIGKILL: else it would hold the device for its whole
    limit, beside what is measured next."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def write_figures(figures: Figures) -> None:
    """Append a line to the file of figures; print it where none is named."""
    line = json.dumps(figures, default=str)
    if FIGURES not in os.environ:
        print(line, flush=True)
        return
    with Path(os.environ[FIGURES]).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target")
    add_options(parser)
    given = parser.parse_args(argv)
    if LIMIT in os.environ:  # by hand, a shell may end before
        end_with_parent()
    faulthandler.enable()
    # As an executor's process does: what warns is known by its level.
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    limit = float(os.environ.get(LIMIT, "0"))
    if limit > 2 * _NOTE_BEFORE_END:
        # Where it hangs is then in the log.
        faulthandler.dump_traceback_later(limit - _NOTE_BEFORE_END)
    code, why = perform(given.target, options_of(given), write_figures)
    faulthandler.cancel_dump_traceback_later()
    sys.stdout.flush()
    if why:
        print(why, file=sys.stderr, flush=True)
    return code
