"""adapter_config.json of PEFT, every key of which is read, harmless for a stated reason, or refused by its name.

The keys are those of PEFT's `LoraConfig` up to 0.21 and of older versions, and what ms-swift and other trainers write beside
them. A key that is not known here may change the result: it is refused unless its value is null, false or empty.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from executors.contract.errors import ConfigError

CONFIG = "adapter_config.json"
MERGE = "merge the adapter into the model (merge_and_unload of PEFT) and serve that"
"""The cure for what only PEFT computes."""
_MOST_CONFIG = 1 << 20

READ = frozenset(
    {
        "peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "init_lora_weights",
        "base_model_name_or_path", "modules_to_save",
    }
)  # fmt: skip
"""Keys that the reader uses. The tensors decide what `modules_to_save` is worth: see `peft.py`."""

HARMLESS: dict[str, str] = {
    **dict.fromkeys(
        (
            "task_type", "auto_mapping", "revision", "peft_version", "inference_mode", "_name_or_path", "library_name",
            "unsloth_version", "unsloth_fixed",
        ),
        "says where the adapter comes from",
    ),
    **dict.fromkeys(("dtype", "torch_dtype", "lora_dtype"), "the tensors have types of their own"),
    **dict.fromkeys(
        ("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
        "says which layers are trained; the tensors that are there say the same",
    ),
    "fan_in_fan_out": "says how the model stores a weight; A and B are stored in one way",
    "lora_dropout": "drops values in training only",
    "merge_weights": "says when PEFT merges, which does not change the sum",
    "enable_lora": "says which thirds of a merged weight are trained; their tensors say the same",
    **dict.fromkeys(
        ("lorap_lr_ratio", "lorap_emb_lr", "loraplus_lr_ratio", "velora_config"), "a setting of training alone"
    ),
    "eva_config": "where A begins in training; the model's own weights stay",
    **dict.fromkeys(
        ("loftq_config", "corda_config", "lora_ga_config"),
        "describes a value of init_lora_weights, which is refused where the model's own weights were changed",
    ),
    "megatron_core": "names a module of megatron, which megatron_config alone turns on",
    "qalora_group_size": "counts with use_qalora only, which is refused",
    "runtime_config": "says where PEFT computes",
    "ephemeral_gpu_offload": "says where PEFT computes",
    "ensure_weight_tying": "concerns embeddings alone, whose tensors are compared with the model's",
}  # fmt: skip
"""Keys without effect on the result, each with the reason."""

REFUSED: dict[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "bias": ("none", None),
    "lora_bias": (False, None),
    "layer_replication": (None, []),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, [], {}),
    "alora_invocation_tokens": (None, []),
    "alora_invocation_string": (None, ""),
    "invocation_string": (None, ""),
    "use_qalora": (False, None),
    "megatron_config": (None,),
    "monteclora_config": (None,),
    "kasa_config": (None,),
    "arrow_config": (None,),
    "use_bdlora": (None, False),
}
"""Keys that change what is computed, and the values at which they do not."""

_NOT_MERGED = frozenset(
    {"alora_invocation_tokens", "alora_invocation_string", "invocation_string", "arrow_config"}
)
"""What depends on the text, so that no merged model computes it."""
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga", "mica")
"""Values of `init_lora_weights` with which the model's own weights were changed, too."""
_NEUTRAL: tuple[Any, ...] = (None, False, "", [], {})


def read_config(path: Path) -> dict[str, Any]:
    """Read and check the file. Raises ConfigError naming it and the key."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_CONFIG + 1)
    except FileNotFoundError:
        raise ConfigError(f"the adapter has no {CONFIG}") from None
    try:
        config = json.loads(raw.decode("utf-8")) if len(raw) <= _MOST_CONFIG else None
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise ConfigError(f"{CONFIG}: it is not a JSON object")
    _check(config)
    return config


def _check(config: dict[str, Any]) -> None:
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise ConfigError(f"{CONFIG}: peft_type {str(kind)[:60]!r} is not supported; supported: LORA")
    for key, value in config.items():
        if key in READ or key in HARMLESS:
            continue
        if not any(
            value is one or (type(value) is type(one) and value == one) for one in REFUSED.get(key, _NEUTRAL)
        ):
            what = "is not supported" if key in REFUSED else "is unknown here and may change the result"
            cure = "" if key in _NOT_MERGED else f": {MERGE}"
            raise ConfigError(f"{CONFIG}: {key[:60]} {str(value)[:100]!r} {what}{cure}")
    start = config.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        raise ConfigError(
            f"{CONFIG}: init_lora_weights {start[:40]!r} changes the model's own weights, too: save the adapter converted to "
            "plain LoRA"
        )
    if not isinstance(config.get("use_rslora"), bool | None):
        raise ConfigError(f"{CONFIG}: use_rslora {str(config['use_rslora'])[:40]!r} should be true or false")


def rank_of(config: dict[str, Any], module: str) -> int:
    """Return the rank of a module. Raises ConfigError."""
    rank = _number(config, "rank_pattern", "r", module)
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise ConfigError(
            f"{CONFIG}: the rank of {module[:200]} is {str(rank)[:40]}; a whole number from 1 on is needed"
        )
    return rank


def scale_of(config: dict[str, Any], module: str, rank: int) -> float:
    """Return the factor of a module: alpha / rank, or alpha / sqrt(rank) with `use_rslora` (Kalajdzievski, 2023). Raises
    ConfigError."""
    alpha = _number(config, "alpha_pattern", "lora_alpha", module)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise ConfigError(f"{CONFIG}: lora_alpha of {module[:200]} is {str(alpha)[:40]}; a number is needed")
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _number(config: dict[str, Any], pattern: str, plain: str, module: str) -> Any:
    """Return a module's own number where a pattern names it, as PEFT finds it: by the end of its name."""
    patterns = config.get(pattern) or {}
    if not isinstance(patterns, dict):
        raise ConfigError(f"{CONFIG}: {pattern} is not an object")
    for key, value in patterns.items():
        try:
            matches = re.match(rf"(.*\.)?({key})$", module) is not None if len(key) < 1000 else False
        except re.error:
            raise ConfigError(f"{CONFIG}: {pattern}: {key[:100]!r} is no regular expression") from None
        if matches:
            return value
    return config.get(plain, 8)
