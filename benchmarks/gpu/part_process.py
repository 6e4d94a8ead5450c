"""The process of one part: calls it and writes down what it finds, as it finds it.

python -m benchmarks.gpu.part_process MODULE:FUNCTION --found FILE [--device cuda] [--tiny]
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import logging
import traceback
from collections.abc import Callable
from pathlib import Path

from tools.gpu_check.plan import Failed, NotRun, Options
from tools.gpu_check.record import Figures, State, write_json

Found = Callable[[Figures], None]
"""Takes figures and writes them down at once, so that a part that is killed has not measured for nothing."""
_NOTE_BEFORE_END = 5.0


def perform(target: str, options: Options, path: Path) -> State:
    """Run one part. Its end is in the file at `path`, whatever it raises."""
    figures: Figures = {}

    def found(more: Figures) -> None:
        figures.update(more)
        write_json(path, {"state": "running", "figures": figures})

    state, detail = State.PASS, ""
    try:
        module, _, function = target.partition(":")
        getattr(importlib.import_module(module), function)(options, found)
    except NotRun as absent:
        state, detail = State.NOT_RUN, str(absent)
    except Failed as failed:
        state, detail = State.FAIL, str(failed)
    except Exception as error:
        traceback.print_exc()
        state, detail = State.FAIL, f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError):
            detail += "; `make gpu-wheels`, where there is a network, fetches what this needs beside torch"
    write_json(path, {"state": state, "detail": detail, "figures": figures})
    return state


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, Options]:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--found", type=Path, required=True)
    parser.add_argument("--limit", type=float)
    add_options(parser)
    given = parser.parse_args(argv)
    return given, options_of(given)


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


def main() -> None:
    """Exit code 0 whatever the part found: it is in the file."""
    given, options = parse()
    faulthandler.enable()
    # As an executor's process does: what warns is known by its level.
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    if given.limit and given.limit > 2 * _NOTE_BEFORE_END:
        # Where it hangs is then in the log.
        faulthandler.dump_traceback_later(given.limit - _NOTE_BEFORE_END)
    perform(given.target, options, given.found)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
