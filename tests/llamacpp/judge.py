"""llama.cpp's converter and its library, for tests: a checkpoint becomes a GGUF file in llama.cpp's own form, and logits."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import llamacpp

HERE = Path(__file__).parent
PROGRAMS = llamacpp.folder() / "bin"
"""Where `make test-external ONLY=llamacpp` builds it, beside the source with the converter."""


def need_programs() -> None:
    """Skip the test where llama.cpp is not built: pytest alone does not build for ten minutes. The target does, and fails if it
    cannot, so that nothing is skipped there."""
    if not PROGRAMS.exists():
        pytest.skip("llama.cpp is not built: make test-external ONLY=llamacpp builds it")


class Converter:
    """A process of `converting.py`: importing what it needs takes seconds."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def convert(self, source: Path, target: Path, kind: str) -> Path:
        """Write the checkpoint of a directory as a GGUF file in "f32" or "f16"; the file. Raises RuntimeError with what the
        converter said."""
        tokenizer = source / "tokenizer.json"
        if not tokenizer.exists():  # the converter counts its pieces before it cuts embeddings
            fields = json.loads((source / "config.json").read_text("utf-8"))
            count = fields.get("text_config", fields)["vocab_size"]
            pieces = {"vocab": {f"piece{i}": i for i in range(count)}}
            tokenizer.write_text(json.dumps({"model": pieces, "added_tokens": []}))
        assert self._process.stdin is not None and self._process.stdout is not None
        job = {"source": str(source), "target": str(target), "kind": kind}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if said := json.loads(line) if line else self._log.read_text("utf-8")[-2000:]:
            raise RuntimeError(f"llama.cpp's converter: {said}")
        return target


@contextlib.contextmanager
def converter(folder: Path) -> Iterator[Converter]:
    """A running converter, whose log is in the folder."""
    source = PROGRAMS.resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{source / 'gguf-py'}{os.pathsep}{source}"}
    log = folder / "converter.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "converting.py")], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=output, text=True,
        )  # fmt: skip
        with process:
            yield Converter(process, log)


@dataclass(frozen=True)
class Computed:
    """What llama.cpp computed of a prompt: `logits`, float32 [T, V], at all its positions in one batch; `greedy`, the most likely
    ids after it, and `steps`, float32 [len(greedy), V], the logits that each was taken from, a token at a time."""

    logits: np.ndarray
    greedy: list[int]
    steps: np.ndarray


def compute(
    file: Path,
    prompts: Sequence[Sequence[int]],
    following: Sequence[int],
    context: int,
    float32: bool,
    folder: Path,
) -> list[Computed]:
    """llama.cpp's logits for token ids, in a process of its own, which a failed assertion ends. `following`: how many ids it
    is to add to each prompt. `float32`: with a KV cache as wide; its own defaults otherwise. Raises RuntimeError if it fails."""
    job, result = folder / "job.json", folder / "result.npz"
    job.write_text(
        json.dumps({
            "model": str(file), "context": context, "float32": float32, "prompts": [list(one) for one in prompts],
            "following": list(following),
        })
    )  # fmt: skip
    words = [
        sys.executable,
        str(HERE / "computing.py"),
        str(PROGRAMS),
        str(job),
        str(result),
    ]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"llama.cpp ended with {done.returncode}: {done.stderr[-2000:]}")
    with np.load(result) as found:
        return [
            Computed(found[f"prompt.{i}"], found[f"greedy.{i}"].tolist(), found[f"steps.{i}"])
            for i in range(len(prompts))
        ]
