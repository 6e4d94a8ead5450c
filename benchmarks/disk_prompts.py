"""First token of an agent's first prompt: cold, and from disk after a restart of the server.

    python -m benchmarks.disk_prompts MODEL_DIR [--tokens 8920,21082] [--flags ...]

The lengths are those of tests/agents/recorded/first_prompts.json. A prompt is a chat: a system prompt of about that many tokens,
and a user's message that names date and directory, of which the second server gets others (Claude Code and Codex put both behind
instructions and tools). Its files leave the page cache before it starts (posix_fadvise), and are read past it where the file
system allows that.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

WORDS = (
    "the of and to in is it you that he was for on are with as his they be at one have this from or".split()
)
"""Each is about one token."""


def main() -> None:
    """Measure, and print a line of JSON for each length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", default="8920")
    parser.add_argument("--port", type=int, default=8461)
    parser.add_argument("--flags", default="")
    arguments = parser.parse_args()
    flags = arguments.flags.split()
    for length in map(int, arguments.tokens.split(",")):
        directory = Path(tempfile.mkdtemp(prefix="disk-prompts-"))
        try:
            result = _morning(arguments, flags, length, directory)
            print(json.dumps(result), flush=True)
        finally:
            shutil.rmtree(directory)


def _morning(arguments: argparse.Namespace, flags: list[str], length: int, directory: Path) -> dict[str, Any]:
    rng = random.Random(length)
    system = " ".join(rng.choice(WORDS) for _ in range(length))
    prompt = [
        ("system", system),
        ("user", "It is 1 May 2026. The directory is /srv/first. What is in it?"),
    ]
    other = [("system", system), ("user", "It is 2 May 2026. The directory is /srv/second. Who wrote it?")]
    with _Server(arguments, [*flags, "--kv-cache-dir", str(directory)]) as server:
        server.first_token([("user", "Hello there")])
        cold = server.first_token(prompt)
        warm = server.first_token(other)
    for path in directory.glob("*/*.kv"):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    stored = sum(path.stat().st_size for path in directory.glob("*/*.kv"))
    # The first server has written both prompts: the next day's is a third one.
    other = [
        ("system", system),
        ("user", "It is 3 May 2026. The directory is /mnt/third. How old is it?"),
    ]
    with _Server(arguments, [*flags, "--kv-cache-dir", str(directory)]) as server:
        server.first_token([("user", "Hello there")])
        disk = server.first_token(other)
    return {
        "tokens": length, "cold_s": round(cold, 2), "memory_s": round(warm, 2), "disk_s": round(disk, 2),
        "ratio": round(disk / cold, 3), "stored_bytes": stored,
    }  # fmt: skip


class _Server:
    """A server while the block runs."""

    def __init__(self, arguments: argparse.Namespace, flags: list[str]) -> None:
        self._url = f"http://127.0.0.1:{arguments.port}"
        command = [
            sys.executable,
            "-m",
            "server.cli",
            "serve",
            arguments.model,
            "--port",
            str(arguments.port),
        ]
        command += ["--served-model-name", "m", "--max-queue-wait", "3600", *flags]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def __enter__(self) -> _Server:
        while True:
            if self._process.poll() is not None:
                raise SystemExit("the server has ended")
            try:
                with urllib.request.urlopen(self._url + "/ready") as answer:
                    if answer.status == 200:
                        return self
            except OSError:
                time.sleep(0.2)

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(120)

    def first_token(self, messages: list[tuple[str, str]]) -> float:
        """Return seconds until the first token."""
        body = {
            "model": "m",
            "messages": [{"role": role, "content": content} for role, content in messages],
            "max_tokens": 2,
            "stream": True,
            "temperature": 0,
            "ignore_eos": True,
        }
        request = urllib.request.Request(
            self._url + "/v1/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        began = time.monotonic()
        first = 0.0
        with urllib.request.urlopen(request, timeout=3600) as answer:
            for line in answer:
                if not first and line.startswith(b"data: {") and b'"content":""' not in line:
                    first = time.monotonic() - began
        return first


if __name__ == "__main__":
    main()
