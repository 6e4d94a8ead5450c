"""A process of llama.cpp's own converter: it answers each line of JSON on its input with a line on its output.

It runs as a program, with llama.cpp's source and its `gguf-py` first on the path, and imports nothing of this project. A line is
`{"source": DIRECTORY, "target": FILE, "kind": "f32" | "f16"}`; the answer is "" or what the converter refused it with. Models of
tests have no text, so the vocabulary is as many made-up pieces as the embeddings have rows; everything else is the converter's.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from pathlib import Path
from typing import Any

import gguf
import torch
from conversion import ModelType, get_model_architecture, get_model_class
from conversion.base import ModelBase
from safetensors import safe_open


def made_up_vocabulary(model: Any) -> None:
    """Write a vocabulary of the kind "llama", which needs neither merges nor a pattern. It changes no tensor."""
    count = model.hparams["vocab_size"]
    writer = model.gguf_writer
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"piece{i}" for i in range(count)])
    writer.add_token_scores([-float(i) for i in range(count)])
    writer.add_token_types([gguf.TokenType.NORMAL] * count)


def has_head(source: Path) -> bool:
    """Whether a checkpoint in one file has a head that guesses tokens."""
    with safe_open(source / "model.safetensors", "pt") as file:
        return any(name.startswith("mtp.") for name in file.keys())  # noqa: SIM118


def convert(source: Path, target: Path, kind: str) -> None:
    """Write the checkpoint of a directory as the GGUF file `target`. Raises whatever the converter raises."""
    types = {"f32": gguf.LlamaFileType.ALL_F32, "f16": gguf.LlamaFileType.MOSTLY_F16}
    with torch.inference_mode():
        fields = ModelBase.load_hparams(source, False)
        model: Any = get_model_class(get_model_architecture(fields, ModelType.TEXT))
        model.set_vocab = made_up_vocabulary
        if getattr(model, "supports_mtp_export", False):
            model.no_mtp = not has_head(
                source
            )  # it looks for one that config.json does not name, and fails without
        model(source, types[kind], target).write()


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    logging.basicConfig(level=logging.WARNING)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            convert(Path(job["source"]), Path(job["target"]), job["kind"])
            answer = ""
        except Exception:  # what it refuses is the answer
            answer = traceback.format_exc()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
