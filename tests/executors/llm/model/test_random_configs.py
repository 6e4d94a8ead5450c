"""Random values of keys in config.json, a few keys at a time: the logits are those of transformers, or the file is refused."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executors.contract import ConfigError, PrefillInput, Tensor
from tests.executors.llm.driver import start
from tests.executors.llm.models import MODEL_CLASSES, SHAPES

pytestmark = pytest.mark.long

NUMBER = 30
"""Files a seed."""
IDS = np.random.default_rng(1).integers(1, 99, 60).tolist()
"""Longer than the windows here and than most lengths before scaling, shorter than what long rope serves unasked."""
SLIDING, FULL = "sliding_attention", "full_attention"
SAME = "same"
"""Leave the key as it is."""

Draw = Callable[[random.Random], Any]


def one_of(*values: Any) -> Draw:
    """`...` takes the key away."""
    return lambda rng: rng.choice(values)


def rope(rng: random.Random) -> dict[str, Any]:
    kind = rng.choice(["default", "linear", "yarn", "dynamic", "llama3", "longrope", ""])
    drawn: dict[str, Any] = {rng.choice(["rope_type", "rope_type", "type"]): kind} if kind else {}
    if kind != "default":
        drawn["factor"] = rng.choice([1.0, 2.0, 4, 8.0])
    if kind == "llama3":
        drawn |= {
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": rng.choice([32, 64]),
        }
    if kind == "yarn":
        optional = {
            "original_max_position_embeddings": 32, "attention_factor": 1.3, "beta_fast": 16, "mscale": 1.0,
            "mscale_all_dim": 0.5, "truncate": False,
        }  # fmt: skip
        drawn |= {name: value for name, value in optional.items() if rng.random() < 0.4}
    optional = {"rope_theta": rng.choice([500.0, 1e6, 10_000]), "partial_rotary_factor": 0.5}
    return drawn | {name: value for name, value in optional.items() if rng.random() < 0.3}


def ropes(rng: random.Random) -> dict[str, Any]:
    return {FULL: rope(rng), SLIDING: {"rope_type": "default", "rope_theta": rng.choice([100.0, 1e4])}}


def layers(rng: random.Random) -> list[str] | None:
    return rng.choice([None, [SLIDING, FULL] * 9, [FULL] * 18, [SLIDING] * 18])


KEYS: dict[str, Draw] = {
    "rope_scaling": lambda rng: rng.choice([None, {}, rope(rng), rope(rng), rope(rng)]),
    "rope_parameters": lambda rng: rng.choice([None, ..., {}, rope(rng), rope(rng), ropes(rng)]),
    "rope_theta": one_of(..., None, 500, 1e6),
    "rope_local_base_freq": one_of(..., None, 100.0),
    "max_position_embeddings": one_of(128, 256, 1024),
    "original_max_position_embeddings": one_of(..., None, 32, 64),
    "partial_rotary_factor": one_of(..., None, 0.5, 1.0),
    "sliding_window": one_of(..., None, 7, 4096),
    "use_sliding_window": one_of(..., True, False, None),
    "max_window_layers": one_of(..., 0, 1, 28),
    "layer_types": layers,
    "sliding_window_pattern": one_of(..., 2, 3),
    "hidden_act": one_of(..., "silu", "gelu", "gelu_pytorch_tanh", "relu", None),
    "hidden_activation": one_of(..., "gelu_pytorch_tanh", "silu", None),
    "activation_function": one_of(..., "relu", "gelu", "gelu_new"),
    "rms_norm_eps": one_of(1e-3, 1e-5),
    "layer_norm_epsilon": one_of(1e-3, 1e-5),
    "attention_multiplier": one_of(..., 0.3, 1.0),
    "residual_multiplier": one_of(..., 0.3, 1.0),
    "embedding_multiplier": one_of(..., 2.0, None),
    "logits_scaling": one_of(..., 3.0, None),
    "final_logit_softcapping": one_of(..., None, 5.0, 0.0),
    "attn_logit_softcapping": one_of(..., None, 5.0, 0.0),
    "query_pre_attn_scalar": one_of(..., 10, 64),
    "num_experts_per_tok": one_of(1, 2),
    "norm_topk_prob": one_of(..., True, False),
    "no_rope_layers": one_of(..., None, [1, 0, 1] * 6),
    "no_rope_layer_interval": one_of(..., 2, 3),
    "scale_attn_weights": one_of(..., True, False),
    "scale_attn_by_inverse_layer_idx": one_of(..., True, False),
    "tie_word_embeddings": one_of(..., True, False, None),
    "use_bidirectional_attention": one_of(..., None, False, True),
    "is_causal": one_of(..., True, False),
    "clip_qkv": one_of(..., None, 8.0),
    "head_dim": one_of(SAME, ..., None),
    "num_key_value_heads": one_of(SAME, ..., None),
    "attention_bias": one_of(SAME, ..., None),
    "mlp_only_layers": one_of(..., None, []),
    "pretraining_tp": one_of(1, 2),
    "pruned_heads": one_of({"0": [1]}),
}


def changes(rng: random.Random, num_layers: int) -> dict[str, Any]:
    names = rng.sample(list(KEYS), rng.randint(1, 3))
    drawn = {name: KEYS[name](rng) for name in names + ["rope_scaling"] * rng.randint(0, 1)}
    cut = {name: value[:num_layers] if isinstance(value, list) else value for name, value in drawn.items()}
    return {name: value for name, value in cut.items() if value != SAME}


def write(source: Path, to: Path, changed: dict[str, Any]) -> Path:
    shutil.copytree(source, to)
    values = json.loads((to / "config.json").read_text())
    inner = values.get("text_config", values)
    inner.update(changed)
    for name in [name for name, value in changed.items() if value is ...]:
        del inner[name]
    (to / "config.json").write_text(json.dumps(values))
    return to


def theirs(kind: str, path: Path) -> np.ndarray | None:
    """The last token's logits, None where transformers refuses the file or makes weights up."""
    import transformers

    cls = getattr(transformers, MODEL_CLASSES.get(kind, f"{kind}ForCausalLM"))
    try:
        model, loaded = cls.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        with torch.no_grad():
            logits = model.eval()(torch.tensor([IDS])).logits[0, -1].numpy()
    except Exception:  # of any kind: its classes look at few of these values themselves
        return None
    return None if loaded["missing_keys"] else logits


async def ours(path: Path) -> np.ndarray:
    executor = await start(path)
    try:
        row = (await executor.prefill(PrefillInput(Tensor.of([IDS], "int32")))).last_token_logits()
        return np.asarray(row).reshape(-1)
    finally:
        await executor.shutdown()


@pytest.mark.long(every=4)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", range(4))
async def test_logits_are_theirs_or_the_file_is_refused(reference: Any, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    compared = 0
    for number in range(NUMBER):
        name = rng.choice(list(SHAPES))
        known = reference(name)
        changed = changes(rng, known.model.config.get_text_config().num_hidden_layers)
        path = write(known.path, tmp_path / str(number), changed)
        expected = theirs(SHAPES[name][0], path)
        if expected is None:
            continue
        try:
            found = await ours(path)
        except ConfigError as error:
            assert any(key in str(error) for key in changed), (name, changed, str(error))
            continue
        apart = np.abs(found - expected).max() / max(1.0, np.abs(expected).max())
        assert apart < 1e-4, (name, changed, apart)
        compared += 1
    assert compared > NUMBER / 2
