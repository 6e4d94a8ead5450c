"""The keys of adapter_config.json: each is read, harmless for a reason, or refused by its name."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from executors.contract import ConfigError
from executors.lora.peft_config import CONFIG, HARMLESS, READ, REFUSED, rank_of, read_config, scale_of

OTHERS = (
    "enable_lora", "merge_weights", "ephemeral_gpu_offload", "lora_dtype", "lorap_lr_ratio", "lorap_emb_lr",
    "alora_invocation_string", "unsloth_version", "unsloth_fixed",
)  # fmt: skip
"""Keys of older versions of PEFT, of ms-swift, of Unsloth and of IBM's fork."""


def read(tmp_path: Path, **config: Any) -> dict[str, Any]:
    (tmp_path / CONFIG).write_text(json.dumps(config))
    return read_config(tmp_path / CONFIG)


def fields_of_peft() -> set[str]:
    """The fields of LoraConfig and what it inherits from, without importing PEFT, which takes seconds."""
    spec = importlib.util.find_spec("peft")
    assert spec is not None and spec.origin is not None
    found = set()
    for name in ("config.py", "tuners/lora/config.py"):
        for one in ast.parse((Path(spec.origin).parent / name).read_text("utf-8")).body:
            if isinstance(one, ast.ClassDef) and one.name in ("PeftConfigMixin", "PeftConfig", "LoraConfig"):
                fields = (line for line in one.body if isinstance(line, ast.AnnAssign))
                found |= {line.target.id for line in fields if isinstance(line.target, ast.Name)}
    return found


def test_every_key_of_peft_has_one_place() -> None:
    fields = fields_of_peft()
    assert len(fields) > 35 and {"r", "peft_type", "inference_mode", "use_dora"} <= fields
    keys = fields | set(OTHERS)
    places = [set(READ), set(HARMLESS), set(REFUSED)]
    assert keys <= set.union(*places)
    assert sum(map(len, places)) == len(set.union(*places))
    assert all(HARMLESS.values())


@pytest.mark.long
def test_what_peft_writes_by_default_is_read(tmp_path: Path) -> None:
    import peft

    peft.LoraConfig(target_modules=["q_proj"]).save_pretrained(tmp_path)
    assert rank_of(read_config(tmp_path / CONFIG), "model.layers.0.self_attn.q_proj") == 8


@pytest.mark.parametrize("key", [*sorted(HARMLESS)])
def test_a_harmless_key_with_any_value(tmp_path: Path, key: str) -> None:
    read(tmp_path, **{key: "anything"})


@pytest.mark.parametrize("key", [*sorted(REFUSED), "a_key_of_tomorrow"])
def test_a_key_that_changes_the_result_or_is_unknown(tmp_path: Path, key: str) -> None:
    for neutral in REFUSED.get(key, (None, False, "", [], {})):
        read(tmp_path, **{key: neutral})
    for value in ({"a": 1}, [1], "x", 1, True):
        with pytest.raises(ConfigError, match=f"^{CONFIG}: {key} "):
            read(tmp_path, **{key: value})


@pytest.mark.parametrize(
    ("key", "value", "merged"),
    [
        ("use_dora", True, True),
        ("bias", "all", True),
        ("of_tomorrow", 1, True),
        ("alora_invocation_tokens", [1], False),
    ],
)
def test_a_refusal_names_the_cure(tmp_path: Path, key: str, value: Any, merged: bool) -> None:
    """An adapter that begins in the middle of a text has no merged form."""
    with pytest.raises(ConfigError) as refusal:
        read(tmp_path, **{key: value})
    assert ("merge_and_unload" in str(refusal.value)) is merged


@pytest.mark.parametrize(
    "start", ["pissa", "pissa_niter_4", "olora", "OLoRA", "corda", "loftq", "lora_ga", "mica"]
)
def test_starts_that_change_the_model(tmp_path: Path, start: str) -> None:
    with pytest.raises(ConfigError, match="init_lora_weights"):
        read(tmp_path, init_lora_weights=start)


@pytest.mark.parametrize("start", [True, False, "gaussian", "eva", "orthogonal"])
def test_starts_that_do_not(tmp_path: Path, start: Any) -> None:
    read(tmp_path, init_lora_weights=start, eva_config={"rho": 2.0})


@pytest.mark.parametrize(
    ("config", "rank", "scale"),
    [
        ({"r": 16, "lora_alpha": 32}, 16, 2.0),
        ({"r": 16, "lora_alpha": 32, "use_rslora": True}, 16, 8.0),
        ({"r": 16, "lora_alpha": 32, "rank_pattern": {"q_proj": 4}}, 4, 8.0),
        ({"r": 4, "lora_alpha": 8, "alpha_pattern": {"^model.layers.0.self_attn.q_proj": 2}}, 4, 0.5),
        ({"r": 4, "lora_alpha": 8, "rank_pattern": {"k_proj": 2}, "alpha_pattern": {"_proj": 2}}, 4, 2.0),
    ],
)
def test_ranks_and_scales(tmp_path: Path, config: dict[str, Any], rank: int, scale: float) -> None:
    found, module = read(tmp_path, **config), "model.layers.0.self_attn.q_proj"
    assert rank_of(found, module) == rank and scale_of(found, module, rank) == scale
