"""Whether an adapter fits a model, from the headers of the model's files: what a load of it would refuse."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from executors import lora
from executors.llm.lora.loaded import fit
from executors.llm.model.config import DecoderConfig
from executors.llm.model.decoder import Decoder


def check_adapter(source: Path, label: str, shape: DecoderConfig, max_rank: int) -> None:
    """Raise the ConfigError with which a server would refuse the adapter. `label`: its name in messages. The adapter is read
    whole, because its numbers have to be finite; of the model nothing is."""
    decoder = Decoder(shape, torch.float32, torch.device("meta"))
    with tempfile.TemporaryDirectory() as place:
        packed = lora.pack(source, Path(place), max_rank, label)
        fit(decoder, lora.read_adapter(packed.path))
