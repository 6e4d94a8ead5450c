"""`make dev`: the server on the echo executor, started anew when a file of the product changes.

    python -m tools.dev_server [--watch FOLDER ...] [ARGUMENT OF cohort serve ...]

The echo executor loads no model, so a start takes less than three seconds. `--executor llm` among the arguments takes the
real one. A server that ends by itself, over a syntax error say, is started again with the next change.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from cohort_server import run
from executors import tiny

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = tuple(
    ROOT / name for name in ("cohort_server", "clients", "server", "engine", "executors", "configs")
)
SUFFIXES = frozenset({".py", ".yaml", ".jinja", ".json", ".cpp", ".h"})
_LOOK_EVERY = 0.3
"""Seconds."""
_STOP_WITHIN = 10.0
"""Seconds that a server has to end after SIGTERM."""

Snapshot = Mapping[Path, int]


def snapshot(folders: Sequence[Path]) -> Snapshot:
    """When each file of the folders was changed last, in nanoseconds."""
    found = {}
    for folder in folders:
        for path in folder.rglob("*"):
            try:
                if path.suffix in SUFFIXES:
                    found[path] = path.stat().st_mtime_ns
            except OSError:  # it was there a moment ago
                continue
    return found


def changed(before: Snapshot, after: Snapshot) -> list[Path]:
    """Files that are new, gone or written to."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def command(arguments: Sequence[str]) -> list[str]:
    """The command line of the server. What the arguments say of the executor wins."""
    echo = (
        []
        if "--executor" in arguments
        else ["--executor", "echo", "--executor-option", f"vocab_size={_ids()}"]
    )
    return [*run.command("server.cli"), "serve", *echo, "--drain-timeout", "1", *arguments]


def _ids() -> int:
    """Token ids of the embedded model, whose tokenizer the echo executor is served with."""
    return int(json.loads((tiny.weights_dir() / "config.json").read_text("utf-8"))["vocab_size"])


def serve(words: Sequence[str], folders: Sequence[Path]) -> int:
    """Keep the server running until Ctrl-C or SIGTERM. Returns 0."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    seen = snapshot(folders)
    server = subprocess.Popen(words)
    told = False
    try:
        while not stop.wait(_LOOK_EVERY):
            if server.poll() is not None and not told:
                print(
                    f"dev: the server ended with {server.returncode}; it starts again with the next change",
                    flush=True,
                )
                told = True
            now = snapshot(folders)
            if different := changed(seen, now):
                seen = now
                print(f"dev: {_shown(different[0])} changed; starting again", flush=True)
                _stop(server)
                server, told = subprocess.Popen(words), False
    finally:
        _stop(server)
    return 0


def _shown(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(_STOP_WITHIN)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def main(argv: Sequence[str]) -> int:
    """Run `make dev`."""
    parser = argparse.ArgumentParser(
        prog="make dev", description=(__doc__ or "").splitlines()[0], allow_abbrev=False
    )
    parser.add_argument(
        "--watch", action="append", type=Path, metavar="FOLDER", help="instead of the product's folders"
    )
    options, arguments = parser.parse_known_args(argv)
    return serve(command(arguments), options.watch or PRODUCT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
