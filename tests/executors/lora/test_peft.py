"""Adapters in PEFT's form: packed exactly, and refused by name where something cannot be served."""

from __future__ import annotations

import json
import math
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.contract import ConfigError
from executors.lora import pack, read_adapter
from executors.lora.peft import CONFIG, WEIGHTS
from tests.executors.lora.peft_files import PREFIX, write_peft

Q, K, DOWN = (
    "model.layers.0.self_attn.q_proj",
    "model.layers.0.self_attn.k_proj",
    "model.layers.1.mlp.down_proj",
)
SHAPES = {Q: (32, 16), K: (8, 16), DOWN: (16, 48)}


def target(tmp_path: Path) -> Path:
    folder = tmp_path / "packed"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_number_is_kept(tmp_path: Path, dtype: torch.dtype) -> None:
    made = write_peft(tmp_path / "a", SHAPES, dtype=dtype, ranks={DOWN: 2})
    packed = pack(tmp_path / "a", target(tmp_path), 64)
    assert packed.path == target(tmp_path) / f"{packed.digest}.safetensors"
    assert (packed.rank, packed.base_model) == (4, "org/base")
    found = read_adapter(packed.path, packed.digest)
    assert found.names == sorted(SHAPES) and found.shapes(DOWN) == (16, 48, 2) and found.rank == 4
    for module in found.modules():
        a, b = made[module.name]
        assert np.array_equal(module.a, a.float().numpy()) and np.array_equal(module.b, b.float().numpy())
        assert module.scale == (4.0 if module.name == DOWN else 2.0)
    # Other programs can read the file, too.
    assert set(load_file(packed.path)) == {f"{name}.{part}" for name in SHAPES for part in "AB"}


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({"lora_alpha": 32}, 8.0),
        ({"lora_alpha": 32, "use_rslora": True}, 16.0),
        ({"lora_alpha": 32, "alpha_pattern": {"q_proj": 4}}, 1.0),
        ({"lora_alpha": 32, "alpha_pattern": {r"layers\.0\.self_attn\.[qv]_proj": 2}}, 0.5),
        ({"lora_alpha": 32, "alpha_pattern": {"roj": 2, "k_proj": 2}}, 8.0),
    ],
)
def test_scales(tmp_path: Path, config: dict[str, Any], scale: float) -> None:
    write_peft(tmp_path / "a", SHAPES, config=config)
    packed = pack(tmp_path / "a", target(tmp_path), 64)
    assert read_adapter(packed.path).scales[Q] == scale


def test_names_with_an_adapter_and_without_a_prefix(tmp_path: Path) -> None:
    write_peft(tmp_path / "a", SHAPES)
    tensors = load_file(tmp_path / "a" / WEIGHTS)
    plain = pack(tmp_path / "a", target(tmp_path), 64)
    for rename in (
        lambda name: name.replace(".weight", ".default.weight"),
        lambda name: name.removeprefix(PREFIX),
    ):
        save_file({rename(name): tensor for name, tensor in tensors.items()}, tmp_path / "a" / WEIGHTS)
        assert pack(tmp_path / "a", target(tmp_path), 64).digest == plain.digest


def test_the_digest_is_of_what_is_computed(tmp_path: Path) -> None:
    def digest(name: str, **how: Any) -> str:
        write_peft(tmp_path / name, SHAPES, **how)
        return pack(tmp_path / name, target(tmp_path), 64).digest

    first = digest("a")
    assert digest("b", config={"base_model_name_or_path": "other", "task_type": None}) == first
    assert digest("c", config={"lora_alpha": 16, "use_rslora": True}) != first  # another scale
    others = {
        digest("d", seed=1),
        digest("e", config={"lora_alpha": 9}),
        digest("f", dtype=torch.bfloat16),
        digest("g", rank=2),
    }
    assert len({first, *others}) == 5


def test_a_file_that_changed_since_is_noticed(tmp_path: Path) -> None:
    write_peft(tmp_path / "a", SHAPES)
    packed = pack(tmp_path / "a", target(tmp_path), 64)
    raw = bytearray(packed.path.read_bytes())
    raw[-5] ^= 1
    packed.path.write_bytes(raw)
    read_adapter(packed.path)
    with pytest.raises(ConfigError, match="not what was loaded before"):
        read_adapter(packed.path, packed.digest)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias"),
        ({"lora_bias": True}, "lora_bias"),
        ({"layer_replication": [[0, 4]]}, "layer_replication"),
        ({"target_parameters": ["experts.gate"]}, "target_parameters"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights"),
        ({"init_lora_weights": "OLoRA"}, "init_lora_weights"),
        ({"r": 8}, "says rank 8"),
        ({"r": 0}, "rank of"),
        ({"r": "4"}, "rank of"),
        ({"lora_alpha": "x"}, "lora_alpha"),
        ({"lora_alpha": math.inf}, "lora_alpha"),
        ({"rank_pattern": []}, None),
        ({"rank_pattern": ["q_proj"]}, "rank_pattern"),
        ({"rank_pattern": {"(": 4}}, "no regular expression"),
    ],
)
def test_configurations_that_are_refused(tmp_path: Path, config: dict[str, Any], why: str | None) -> None:
    write_peft(tmp_path / "a", SHAPES, config=config)
    if why is None:
        pack(tmp_path / "a", target(tmp_path), 64)
        return
    with pytest.raises(ConfigError, match=why):
        pack(tmp_path / "a", target(tmp_path), 64)
    assert list(target(tmp_path).iterdir()) == []


def test_too_high_a_rank(tmp_path: Path) -> None:
    write_peft(tmp_path / "a", SHAPES, rank=16)
    with pytest.raises(ConfigError, match="rank 16 is more than this server's --max-lora-rank 8"):
        pack(tmp_path / "a", target(tmp_path), 8)


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    found = load_file(folder / WEIGHTS)
    for name, tensor in tensors.items():
        found.pop(name, None)
        if tensor is not None:
            found[name] = tensor
    save_file(found, folder / WEIGHTS)


@pytest.mark.parametrize(
    ("name", "tensor", "why"),
    [
        (f"{PREFIX}{Q}.lora_A.weight", None, f"lora_A of {Q} is missing"),
        (f"{PREFIX}{Q}.lora_B.weight", None, f"lora_B of {Q} is missing"),
        (f"{PREFIX}{Q}.lora_A.weight", torch.zeros(4), "two sizes"),
        (f"{PREFIX}{Q}.lora_A.weight", torch.zeros(3, 16), "says rank 4"),
        (f"{PREFIX}{Q}.lora_B.weight", torch.full((32, 4), torch.nan), "NaN or infinity"),
        (
            f"{PREFIX}{Q}.lora_B.weight",
            torch.full((32, 4), -torch.inf, dtype=torch.bfloat16),
            "NaN or infinity",
        ),
        (f"{PREFIX}{Q}.lora_B.weight", torch.zeros((32, 4), dtype=torch.int8), "dtype I8"),
        (f"{PREFIX}{Q}.lora_magnitude_vector", torch.zeros(32), "no lora_A or lora_B"),
        (f"{PREFIX}model.embed_tokens.lora_embedding_A", torch.zeros(4, 16), "no lora_A or lora_B"),
        (f"{PREFIX}{Q}.base_layer.weight", torch.zeros(32, 16), "no lora_A or lora_B"),
        (f"{Q}.lora_A.weight", torch.zeros(4, 16), "two tensors for lora_A"),
    ],
)
def test_tensors_that_are_refused(tmp_path: Path, name: str, tensor: torch.Tensor | None, why: str) -> None:
    write_peft(tmp_path / "a", SHAPES)
    change(tmp_path / "a", **{name: tensor})
    with pytest.raises(ConfigError, match=why):
        pack(tmp_path / "a", target(tmp_path), 64)
    assert list(target(tmp_path).iterdir()) == []


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_a_missing_file(tmp_path: Path, name: str) -> None:
    write_peft(tmp_path / "a", SHAPES)
    (tmp_path / "a" / name).unlink()
    with pytest.raises(ConfigError, match=f"no {name}"):
        pack(tmp_path / "a", target(tmp_path), 64)


def mutated(raw: bytes, rng: random.Random) -> bytes:
    """A file with a fault: cut, with other bytes, or with a header that says something else."""
    kind = rng.randrange(5)
    if kind == 0:
        return raw[: rng.randrange(len(raw))]
    if kind == 1:
        return rng.randbytes(8) + raw[8:]
    length = int.from_bytes(raw[:8], "little")
    if kind == 2:
        changed = bytearray(raw)
        for _ in range(rng.randrange(1, 6)):
            changed[rng.randrange(8 + length)] = rng.randrange(256)
        return bytes(changed)
    header = json.loads(raw[8 : 8 + length])
    name = rng.choice(sorted(set(header) - {"__metadata__"}))
    field = rng.choice(["dtype", "shape", "data_offsets"])
    header[name][field] = rng.choice(
        [
            None,
            -1,
            "x",
            [],
            [1],
            [2**60, 2**60],
            [-4, 4],
            {},
            "F64",
            [0, 10**9],
            [1.5, 2],
            [True, 4],
            "F32",
            [4, 16, 1],
        ]
    )
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + raw[8 + length :]


def test_mutations_load_or_say_why(tmp_path: Path) -> None:
    write_peft(tmp_path / "a", SHAPES)
    raw = (tmp_path / "a" / WEIGHTS).read_bytes()
    rng, refused = random.Random(1), 0
    for _ in range(600):
        (tmp_path / "a" / WEIGHTS).write_bytes(mutated(raw, rng))
        began = time.monotonic()
        try:
            packed = pack(tmp_path / "a", target(tmp_path), 64)
            read_adapter(packed.path, packed.digest)
        except ConfigError as error:
            assert WEIGHTS in str(error) and "\n" not in str(error) and len(str(error)) < 700
            refused += 1
        assert time.monotonic() - began < 1
    assert refused > 400


def test_mutations_of_the_packed_file_load_or_say_why(tmp_path: Path) -> None:
    write_peft(tmp_path / "a", SHAPES)
    packed = pack(tmp_path / "a", target(tmp_path), 64)
    raw, rng = packed.path.read_bytes(), random.Random(2)
    for _ in range(300):
        packed.path.write_bytes(mutated(raw, rng))
        try:
            list(read_adapter(packed.path).modules())
        except ConfigError:
            pass
