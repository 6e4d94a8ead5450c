"""Small random checkpoints of odd shapes, written by transformers, and its logits for comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

QWEN3: dict[str, Any] = {
    "vocab_size": 211, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
    "head_dim": 20, "intermediate_size": 72, "max_position_embeddings": 512, "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "vocab_size": 130, "hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 1,
    "head_dim": 16, "intermediate_size": 56, "max_position_embeddings": 256, "tie_word_embeddings": False,
    "attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3_ROPE,
}  # fmt: skip
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-tied-gqa": ("Qwen3", QWEN3),
    "qwen3-untied-one-kv-head": ("Qwen3", {**QWEN3, "num_key_value_heads": 1, "tie_word_embeddings": False}),
    "llama-biases-llama3-rope": ("Llama", LLAMA),
    "llama-tied-no-gqa-linear-rope": (
        "Llama",
        {
            **LLAMA, "num_key_value_heads": 5, "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False,
            "head_dim": 8, "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
        },
    ),
    "llama-dynamic-rope": (
        "Llama",
        {**LLAMA, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}},
    ),
    "llama-yarn": (
        "Llama",
        {
            **LLAMA, "head_dim": 24, "num_attention_heads": 4, "num_key_value_heads": 2,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
            },
        },
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Reference:
    """A checkpoint on disk and the model that wrote it."""

    path: Path
    model: Any

    @property
    def vocab_size(self) -> int:
        return self.model.config.vocab_size

    def logits(self, ids: list[int] | np.ndarray) -> np.ndarray:
        """float32 [len(ids), V]."""
        with torch.no_grad():
            return self.model(torch.tensor([list(ids)])).logits[0].float().numpy()

    def greedy(self, ids: list[int], n: int) -> list[int]:
        """n tokens after `ids`, each the most likely one."""
        out = self.model.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), do_sample=False,
            max_new_tokens=n, min_new_tokens=n, pad_token_id=0,
        )  # fmt: skip
        return out[0, len(ids) :].tolist()


def build(name: str, directory: Path, **save: Any) -> Reference:
    """Write the checkpoint of a shape in SHAPES; weights are large enough for peaked, position-dependent logits."""
    import transformers

    kind, fields = SHAPES[name]
    config = getattr(transformers, f"{kind}Config")(**fields, bos_token_id=None, eos_token_id=None)
    torch.manual_seed(len(name))
    model = getattr(transformers, f"{kind}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 1.2 / parameter.shape[1] ** 0.5)
            elif parameter_name.endswith("bias"):
                parameter.normal_(0.0, 0.3)
            else:
                parameter.uniform_(0.5, 1.5)
    if fields["tie_word_embeddings"]:
        model.tie_weights()
    model.save_pretrained(directory, **save)
    return Reference(directory, model)
