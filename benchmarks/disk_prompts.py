"""First token of an agent's first prompt: cold, and from disk after a restart of the server.

    python -m benchmarks.disk_prompts MODEL_DIR [--tokens 8920,21082] [--flags ...] [--other MODEL]

The lengths are those of tests/agents/recorded/first_prompts.json. A prompt is a chat: a system prompt of about that many tokens,
and a user's message that names date and directory, of which the second server gets others (Claude Code and Codex put both behind
instructions and tools). Its files leave the page cache before it starts (posix_fadvise), and are read past it where the file
system allows that. With --other the second server has two models, and a last prompt comes after the first model was unloaded: its
time has the load in it.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

from benchmarks import first_token, page_cache

WORDS = (
    "the of and to in is it you that he was for on are with as his they be at one have this from or".split()
)
"""Each is about one token to most tokenizers; how many, a server is asked."""


def main() -> None:
    """Measure, and print a line of JSON for each length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", default="8920")
    parser.add_argument("--port", type=int, default=8461)
    parser.add_argument("--flags", default="")
    parser.add_argument("--other", help="a second model, to measure a prompt after an unload")
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
    flags = [*flags, "--kv-cache-dir", str(directory)]
    hello = [("user", "Hello there")]
    with _Server([arguments.model, "--served-model-name", "m"], arguments.port, flags) as server:
        server.first_token(hello)
        prompts = _prompts(length, server)
        cold = server.first_token(prompts[0])
        warm = server.first_token(prompts[1])
    stored = page_cache.drop(directory.glob("*/*.kv"))
    # The first server has written both prompts: the next day's are others.
    served = [f"m={arguments.model}", f"o={arguments.other}"] if arguments.other else [arguments.model]
    result: dict[str, Any] = {"tokens": length, "cold_s": round(cold, 2), "memory_s": round(warm, 2)}
    with _Server(
        [*served, *([] if arguments.other else ["--served-model-name", "m"])], arguments.port, flags
    ) as server:
        server.first_token(hello)
        disk = server.first_token(prompts[2])
        result |= {"disk_s": round(disk, 2), "ratio": round(disk / cold, 3), "stored_bytes": stored}
        if arguments.other:
            server.post("/models/unload", {"model": "m"})
            page_cache.drop(directory.glob("*/*.kv"))
            unloaded = server.first_token(prompts[3])
            result |= {"unloaded_s": round(unloaded, 2), "unloaded_ratio": round(unloaded / cold, 3)}
    return result


def _prompts(length: int, server: _Server) -> list[list[tuple[str, str]]]:
    """Return four chats whose system prompt has about `length` tokens and whose user's messages differ."""
    rng = random.Random(length)
    words = [rng.choice(WORDS) for _ in range(length)]
    with server.post("/tokenize", {"model": "m", "prompt": " ".join(words[:1000])}) as answer:
        tokens_per_word = json.load(answer)["count"] / len(words[:1000])
    system = " ".join(words[: round(length / tokens_per_word)])
    ends = [
        "It is 1 May 2026. The directory is /srv/first. What is in it?",
        "It is 2 May 2026. The directory is /srv/second. Who wrote it?",
        "It is 3 May 2026. The directory is /mnt/third. How old is it?",
        "It is 4 May 2026. The directory is /mnt/fourth. Is it large?",
    ]
    return [[("system", system), ("user", end)] for end in ends]


class _Server:
    """A server while the block runs."""

    def __init__(self, models: list[str], port: int, flags: list[str]) -> None:
        self._url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "server.cli", "serve", *models, "--port", str(port)]
        command += ["--max-queue-wait", "3600", *flags]
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

    def post(self, path: str, body: dict[str, Any]) -> HTTPResponse:
        """Return the answer of a call, its body not yet read."""
        return first_token.post(self._url + path, body)

    def first_token(self, messages: list[tuple[str, str]]) -> float:
        """Return seconds until the first token."""
        body = {"model": "m", "messages": [{"role": role, "content": content} for role, content in messages]}
        return first_token.first_token(f"{self._url}/v1/chat/completions", body, 2)


if __name__ == "__main__":
    main()
