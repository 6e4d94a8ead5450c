"""Small checkpoint directories: a byte tokenizer with a chat template, and a model without weights (load format dummy)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCAB_SIZE = 258
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "vocab_size": VOCAB_SIZE, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 512,
    "attention_bias": False, "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "float32",
}  # fmt: skip


def write_tokenizer(folder: Path, template: str | None = TEMPLATE) -> Path:
    """A token a byte, and the two marks of ChatML."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
    raw.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>"} | ({"chat_template": template} if template else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_model(folder: Path, **changes: Any) -> Path:
    """Tokenizer and config.json; serve it with `--load-format dummy`."""
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return folder
