"""Models with random weights and a tokenizer, written once: both servers load the same files.

The shapes are those of benchmarks/shapes.py. Random weights take the same time as trained ones; they are scaled so that
activations stay of order one, for numbers near zero would be slow on some CPUs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.shapes import SHAPES, write_shape

if TYPE_CHECKING:
    import torch

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_WORDS = 151643
"""Tokens before the special ones, as in Qwen's tokenizer: then <|im_end|> is 151645, the shapes' eos_token_id."""
END = _WORDS + SPECIAL.index("<|im_end|>")
_DONE = "complete"


def folder(shape: str) -> Path:
    """Where the model is: below PEER_MODELS, or a place in the user's cache."""
    base = os.environ.get("PEER_MODELS") or Path.home() / ".cache/cohort-peers/models"
    return Path(base).expanduser() / shape


def ensure(shape: str) -> Path:
    """The model's folder, written where it is not there yet."""
    path = folder(shape)
    if not (path / _DONE).exists():
        print(f"writing {shape} to {path}", flush=True)
        write_shape(shape, path)
        write_tokenizer(path, num_words(SHAPES[shape]))
        write_weights(SHAPES[shape], path)
        (path / _DONE).touch()
    return path


def write_tokenizer(path: Path, words: int = _WORDS) -> None:
    """Byte tokens, words that no text has up to `words` of both, and the special tokens of ChatML."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = (f"\u0120word{number}" for number in range(words - len(letters)))
    tokenizer = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate((*letters, *made))}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[2], "pad_token": SPECIAL[0],
        "chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
    }  # fmt: skip
    (path / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def num_words(shape: dict[str, Any]) -> int:
    """Tokens before the special ones, as many as the vocabulary has room for."""
    return min(_WORDS, int(shape["vocab_size"]) - len(SPECIAL))


def write_weights(shape: dict[str, Any], path: Path) -> None:
    """One safetensors file in bfloat16, by the names of a Qwen3 checkpoint."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, torch.Tensor] = {}
    for name, size in tensor_sizes(shape).items():
        if len(size) == 1:
            tensors[name] = torch.ones(size, dtype=torch.bfloat16)
            continue
        # Rows of the embedding are added up, all others multiplied: unit variance in, unit variance out.
        scale = 0.5 if "embed" in name else size[1] ** -0.5
        tensors[name] = (torch.randn(size, generator=generator) * scale).bfloat16()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def tensor_sizes(shape: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of the checkpoint; lm_head is the embedding."""
    hidden, inner, head = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    q, kv = head * shape["num_attention_heads"], head * shape["num_key_value_heads"]
    sizes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape["vocab_size"], hidden)}
    for number in range(shape["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        sizes |= {
            f"{layer}.input_layernorm.weight": (hidden,),
            f"{layer}.self_attn.q_proj.weight": (q, hidden),
            f"{layer}.self_attn.k_proj.weight": (kv, hidden),
            f"{layer}.self_attn.v_proj.weight": (kv, hidden),
            f"{layer}.self_attn.o_proj.weight": (hidden, q),
            f"{layer}.self_attn.q_norm.weight": (head,),
            f"{layer}.self_attn.k_norm.weight": (head,),
            f"{layer}.post_attention_layernorm.weight": (hidden,),
            f"{layer}.mlp.gate_proj.weight": (inner, hidden),
            f"{layer}.mlp.up_proj.weight": (inner, hidden),
            f"{layer}.mlp.down_proj.weight": (hidden, inner),
        }
    sizes["model.norm.weight"] = (hidden,)
    return sizes


def weight_bytes(shape: str) -> int:
    """Bytes of all matrices that a decoding step reads, in bfloat16; of the embedding it reads all as lm_head."""
    total = 0
    for size in tensor_sizes(SHAPES[shape]).values():
        if len(size) == 2:
            total += 2 * size[0] * size[1]
    return total
