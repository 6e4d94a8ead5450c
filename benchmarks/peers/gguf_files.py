"""The GGUF files that Cohort and llama.cpp serve: a trained model, generated ones quantized by llama.cpp itself, and large
models with fewer layers.

The trained one has rows that no block of 256 divides, so K-quants, which most people hold, need a model of another shape.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers import cut_shapes, hybrid_files, llamacpp, models

TRAINED = "smollm2"
"""SmolLM2-135M-Instruct, most of it in Q4_1."""
QUANTIZED = {
    "qwen3-0.6b-q4_k_m": ("qwen3-0.6b", "Q4_K_M"), "qwen3-0.6b-q4_0": ("qwen3-0.6b", "Q4_0"),
    "qwen3-2-layers-q4_k_m": ("qwen3-2-layers", "Q4_K_M"),
    **{f"{shape}-q4_k_m": (shape, "Q4_K_M") for shape in ("qwen3.5-0.8b", "dense-0.8b", "lfm2-350m", "dense-350m")},
}  # fmt: skip
"""Shapes, and what llama-quantize calls the mixture of types."""
NAMES = (TRAINED, *QUANTIZED, *cut_shapes.CUTS)

_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
_IN_LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def ensure(name: str) -> Path:
    """One of NAMES, made where it is not there yet, or a file's path.

    Raises FileNotFoundError for another name without a file, RuntimeError and subprocess.CalledProcessError where a file
    cannot be made.
    """
    if name == TRAINED:
        from tools.real_models import gguf_file

        return gguf_file(TRAINED)
    if name in QUANTIZED:
        return _quantized(name)
    if name in cut_shapes.CUTS:
        return _cut(name)
    path = Path(name)
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no file {name}; files with a name of their own: {', '.join(NAMES)}"
        )
    return path.resolve()


def _quantized(name: str) -> Path:
    path = models.folder(name).with_name(f"{name}.gguf")
    if path.exists():
        return path
    shape, kind = QUANTIZED[name]
    quantize = llamacpp.ensure() / "bin/llama-quantize"
    print(f"writing {path}", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        wide, made = Path(folder) / "wide.gguf", Path(folder) / "made.gguf"
        if hybrid_files.is_hybrid(shape):
            hybrid_files.write(shape, wide)
        else:
            write(models.ensure(shape), wide)
        done = subprocess.run(
            [quantize, str(wide), str(made), kind],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"llama-quantize ended with {done.returncode}:\n{done.stdout[-1000:]}")
        made.rename(path)
    return path


def _cut(name: str) -> Path:
    path = models.folder(name).with_name(f"{name}.gguf")
    if path.exists():
        return path
    print(f"writing {path}", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    cut = cut_shapes.CUTS[name]()
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        source, made = Path(folder), Path(folder) / path.name
        models.write_tokenizer(source)
        end = {"vocab_size": cut.vocabulary, "eos_token_id": models.END}
        cut_shapes.write(cut, made, lambda writer: add_tokenizer(writer, source, end))
        made.rename(path)
    return path


def write(source: Path, path: Path) -> None:
    """Write a folder that `models.ensure` made, whose weights are bfloat16, as a GGUF file of the architecture qwen3."""
    import gguf

    config = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_name(source.name)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    add_tokenizer(writer, source, config)
    for name, tensor in _tensors(source):
        if tensor.dim() == 1:
            writer.add_tensor(name, tensor.float().numpy())
        else:
            import torch

            # NumPy has no bfloat16.
            stored = tensor.contiguous().view(torch.uint8).numpy()
            writer.add_tensor(name, stored, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: Any, source: Path, config: dict[str, Any]) -> None:
    """The tokens that `models.write_tokenizer` made, and unused ones up to the vocabulary's size."""
    import gguf

    made = json.loads((source / "tokenizer.json").read_text())
    special = {one["id"]: one["content"] for one in made["added_tokens"]}
    texts = {number: text for text, number in made["model"]["vocab"].items()} | special
    kinds = dict.fromkeys(texts, gguf.TokenType.NORMAL) | dict.fromkeys(special, gguf.TokenType.CONTROL)
    numbers = range(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([texts.get(number, f"[unused{number}]") for number in numbers])
    writer.add_token_types([kinds.get(number, gguf.TokenType.UNUSED) for number in numbers])
    # llama.cpp asks for a list that is not empty. No text reaches this merge: none makes its first token.
    writer.add_token_merges(["\u0120word1 2"])
    writer.add_eos_token_id(next(number for number, text in special.items() if text == models.SPECIAL[2]))
    template = json.loads((source / "tokenizer_config.json").read_text())["chat_template"]
    writer.add_chat_template(template)


def _tensors(source: Path) -> Iterator[tuple[str, Any]]:
    """Every tensor, by its name in GGUF files."""
    from safetensors import safe_open

    with safe_open(source / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118
            stem, kind = name.rsplit(".", 1)
            if stem in _WHOLE:
                yield f"{_WHOLE[stem]}.{kind}", file.get_tensor(name)
            else:
                layer, part = stem.removeprefix("model.layers.").split(".", 1)
                yield f"blk.{layer}.{_IN_LAYER[part]}.{kind}", file.get_tensor(name)
