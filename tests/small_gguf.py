"""A small GGUF file that can be served: random weights, a tokenizer of some 1,500 tokens, a chat template."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.engine.text.gguf_conversion import convert
from tests.engine.text.gguf_originals import PRE, original
from tests.executors.checkpoints import write_checkpoint
from tests.executors.gguf_files import converted_checkpoint, sizes, write_gguf

CONTEXT = 256
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": CONTEXT, "tie_word_embeddings": True,
    "dtype": "float32", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
}  # fmt: skip
_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"


def write_small_gguf(path: Path, kind: str = "Q8_0", **changes: Any) -> Path:
    """Write a llama with its matrices in `kind`; `changes` replace or add metadata by their whole key, None removes one."""
    tokenizer, config = original("smollm2")
    made = convert(tokenizer, {**config, "chat_template": _TEMPLATE}, PRE["smollm2"])
    fields = {**CONFIG, "vocab_size": len(made["tokenizer.ggml.tokens"])}
    with tempfile.TemporaryDirectory() as folder:
        tensors = converted_checkpoint(write_checkpoint(Path(folder) / "hf", fields), "llama")
    metadata = {key: value for key, value in made.items() if key.startswith("tokenizer.")}
    metadata |= {**sizes(fields), "rope.dimension_count": 16, **changes}
    plain = {
        key: value.tolist() if isinstance(value, np.ndarray) else value
        for key, value in metadata.items()
        if value is not None
    }
    return write_gguf(path, "llama", plain, tensors, lambda name: kind)
