"""Models and flags under which executors are killed, and the calls that run meanwhile."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import models
from tools import real_models

OUTPUT = 160
"""Tokens of each stream: those whose prompts come first still run when the last one has its first tokens."""
MARGIN_TOKENS = 256
_HEADROOM = 1.1


@dataclass(frozen=True)
class Case:
    """`flags`: of `cohort serve`, made with the folder of the model and one for files of the case. `salts`, `names`: values
    that streams take in turn. `kv_bytes`: of a token, all layers."""

    name: str
    model: Callable[[], Path]
    kv_bytes: int
    flags: Callable[[Path, Path], Sequence[str]] = lambda model, folder: ()
    salts: tuple[str, ...] = ("",)
    names: tuple[str, ...] = ("bench",)

    def arguments(self, folder: Path, streams: int, prompt: int) -> list[str]:
        """Of `cohort serve`, with room for all streams at once."""
        model = self.model()
        tokens = streams * (prompt + OUTPUT + MARGIN_TOKENS)
        return [
            str(model), "--served-model-name", "bench", "--deterministic", "--max-num-seqs", str(max(streams, 8)),
            "--max-model-len", str(prompt + OUTPUT + MARGIN_TOKENS), "--max-queue-wait", "3600",
            "--kv-cache-memory-bytes", str(int(tokens * self.kv_bytes * _HEADROOM)), *self.flags(model, folder),
        ]  # fmt: skip

    def bodies(self, streams: int, prompt: int) -> list[dict[str, Any]]:
        """Completions with prompts of token ids that have nothing in common; every other one samples with a seed."""
        made = []
        for number in range(streams):
            rng = random.Random(number)
            body: dict[str, Any] = {
                "model": self.names[number % len(self.names)],
                "prompt": [rng.randrange(300, 900) for _ in range(prompt)],
                "max_tokens": OUTPUT,
                "ignore_eos": True,
                "temperature": number % 2 * 0.8,
                "seed": number,
            }
            if salt := self.salts[number % len(self.salts)]:
                body["cache_salt"] = salt
                # Streams with another salt ask the same: none may read what another one has left.
                rng = random.Random(number // len(self.salts))
                body["prompt"] = [rng.randrange(300, 900) for _ in range(prompt)]
            made.append(body)
        return made


def _smollm2() -> Path:
    return real_models.directory("smollm2")


def _shape() -> Path:
    return models.ensure("qwen3-0.6b")


def _draft(model: Path, folder: Path) -> Path:
    """A draft model of the first layers: right now and then."""
    from safetensors.torch import load_file, save_file

    layers, made = 4, folder / "draft"
    made.mkdir(exist_ok=True)
    config = json.loads((model / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    tensors = {
        name: tensor
        for name, tensor in load_file(model / "model.safetensors").items()
        if not name.startswith("model.layers.") or int(name.split(".")[2]) < layers
    }
    save_file(tensors, made / "model.safetensors", {"format": "pt"})
    return made


def _loras(model: Path, folder: Path) -> list[str]:
    """Two adapters of random matrices for queries and values."""
    import torch
    from safetensors import safe_open

    from tests.executors.lora.peft_files import write_peft

    sizes: dict[str, tuple[int, int]] = {}
    with safe_open(model / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118
            if name.endswith(("q_proj.weight", "v_proj.weight")):
                rows, columns = file.get_slice(name).get_shape()
                sizes[name.removesuffix(".weight")] = rows, columns
    for seed, name in enumerate(("a", "b")):
        write_peft(folder / name, sizes, rank=4, seed=seed, dtype=torch.bfloat16, config={"lora_alpha": 2})
    return ["--lora-modules", *(f"{name}={folder / name}" for name in ("a", "b"))]


def _speculates(model: Path, folder: Path) -> list[str]:
    given = {"model": str(_draft(model, folder)), "num_speculative_tokens": 3}
    return ["--speculative-config", json.dumps(given)]


def always(*flags: str) -> Callable[[Path, Path], Sequence[str]]:
    """Flags that need no files."""
    return lambda model, folder: flags


_INT8 = always("--kv-cache-dtype", "int8")
_SMOLLM2_BYTES, _SHAPE_BYTES = 2 * 2 * 30 * 3 * 64, 2 * 2 * 28 * 8 * 128
CASES = {
    case.name: case
    for case in (
        Case("smollm2", _smollm2, _SMOLLM2_BYTES),
        Case("smollm2-int8", _smollm2, _SMOLLM2_BYTES, _INT8),
        Case("qwen3-0.6b", _shape, _SHAPE_BYTES),
        Case("qwen3-0.6b-int8", _shape, _SHAPE_BYTES, _INT8),
        Case("no-prefix-caching", _smollm2, _SMOLLM2_BYTES, always("--no-enable-prefix-caching")),
        Case("lora", _smollm2, _SMOLLM2_BYTES, _loras, names=("bench", "a", "b")),
        Case("salts", _smollm2, _SMOLLM2_BYTES, salts=("one", "two")),
        Case("draft-model", _smollm2, 2 * _SMOLLM2_BYTES, _speculates),
        Case("tensor-parallel", _shape, _SHAPE_BYTES, always("--tensor-parallel-size", "2")),
    )
}
