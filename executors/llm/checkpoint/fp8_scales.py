"""The scales of FP8 tensors in a checkpoint: of weights, and of keys and values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from executors.contract.errors import ConfigError
from executors.llm.checkpoint.safetensors_file import SafetensorsFile
from executors.llm.model.config import LayerConfig
from executors.llm.model.fp8 import E4M3, GROUP, from_e8m0
from executors.llm.model.layers.attention import Attention
from executors.llm.model.layers.kinds import MIXERS
from executors.llm.model.names import WrittenNames

if TYPE_CHECKING:
    from executors.llm.checkpoint.files import Checkpoint
    from executors.llm.model.decoder import Decoder
    from executors.llm.model.places import Place

_OF_WEIGHT = ("weight_scale_inv", "weight_scale")
"""Names of weight scales. Both are factors: "inverse" refers to the multiplier that was applied before the weight was
rounded."""
_OF_INPUT = ("input_scale", "activation_scale")
"""Static scales of activations. They are not used, because activations are quantized dynamically."""
_OF_KEYS = ("{attn}.k_scale", "{attn}.attn.k_scale", "{k}.k_scale", "{k}.output_scale")
_OF_VALUES = ("{attn}.v_scale", "{attn}.attn.v_scale", "{v}.v_scale", "{v}.output_scale")
_OTHERS = ("{attn}.q_scale", "{attn}.attn.q_scale", "{attn}.kv_scale", "{q}.q_scale", "{q}.output_scale")
"""Scales of queries, which stay wide, and an older form with one scale for keys and values."""


class CheckpointScales:
    """A checkpoint's scales for the tensors `targets`. `names`: the names of the scales, which do not count as surplus
    tensors. Raises ConfigError for an FP8 tensor without a scale or with a scale of the wrong shape."""

    def __init__(self, decoder: Decoder, checkpoint: Checkpoint, targets: dict[str, Place]) -> None:
        self._decoder, self._checkpoint, self._targets = decoder, checkpoint, targets
        self._present = checkpoint.names() if decoder.config.quantization is not None else set()
        self._of: dict[str, torch.Tensor] = {}
        kv = [name for layer in self._kv_candidates() for names in layer for name in names]
        present = {name for name in kv if name in self._present}
        for target, place in targets.items():
            stem = target.removesuffix(".weight")
            present |= {f"{stem}.{one}" for one in (*_OF_WEIGHT, *_OF_INPUT)} & self._present
            if target in checkpoint.names() and checkpoint.file_of(target).is_fp8(target):
                self._of[target] = self._weight(target, stem, place)
        self.names = frozenset(present)

    def of(self, target: str) -> torch.Tensor:
        """float32 [rows, 1], or [rows, columns / 128] where blocks have scales."""
        return self._of[target]

    def of_kv(self) -> tuple[tuple[float, float], ...]:
        """Return one pair per layer for KV in FP8; () if there are none or KV is not in FP8."""
        if self._decoder.kv_dtype is not E4M3:
            return ()
        pairs = [(self._number(keys), self._number(values)) for keys, values, _ in self._kv_candidates()]
        return () if all(pair == (1.0, 1.0) for pair in pairs) else tuple(pairs)

    def _weight(self, target: str, stem: str, place: Place) -> torch.Tensor:
        where = self._checkpoint.file_of(target).path
        if self._decoder.config.fp8 is None:
            claim = self._decoder.config.quantization
            fault = (
                f"{claim.where} ({claim.method}) does not say how"
                if claim is not None
                else ("config.json has no quantization_config")
            )
            raise ConfigError(f"{where}: tensor {target} is in FP8, {fault}")
        name = next((f"{stem}.{one}" for one in _OF_WEIGHT if f"{stem}.{one}" in self._present), None)
        if name is None:
            raise ConfigError(
                f"{where}: tensor {target} is in FP8 and there is no {stem}.weight_scale for it"
            )
        shape = self._checkpoint.file_of(target).shape(target)
        if place.turned or len(shape) != 2:
            raise ConfigError(
                f"{where}: tensor {target} is in FP8, which is not supported for this kind of tensor"
            )
        rows, columns = shape
        scales = self._read(name)
        if scales.dim() == 4 and scales.shape[1] == scales.shape[3] == 1:
            scales = scales[:, 0, :, 0]  # as Model Optimizer writes those of blocks
        if self._decoder.config.fp8.blocks and scales.shape == (-(-rows // GROUP), -(-columns // GROUP)):
            return scales.repeat_interleave(GROUP, 0)[:rows]
        if tuple(scales.shape) in ((rows,), (rows, 1)):
            return scales.view(rows, 1)
        if scales.numel() == 1:
            return scales.view(1, 1).expand(rows, 1)
        raise ConfigError(
            f"{where}: {name} has shape {list(scales.shape)}, which does not fit a weight of shape {list(shape)}"
        )

    def _read(self, name: str) -> torch.Tensor:
        file = self._checkpoint.file_of(name)
        if isinstance(file, SafetensorsFile) and file.type_name(name) == "F8_E8M0":
            scales = from_e8m0(file.view(name))
        else:
            scales = torch.empty(file.shape(name), dtype=torch.float32)
            file.copy_into(name, scales)
        if not torch.isfinite(scales).all():
            raise ConfigError(f"{file.path}: {name} has numbers that are not finite")
        return scales

    def _number(self, names: list[str]) -> float:
        """Return the first scale that exists and is positive, or 1 if there is none: some savers write -1 for "no scale"."""
        for name in names:
            if name in self._present and math.prod(self._checkpoint.file_of(name).shape(name)) == 1:
                value = float(self._read(name))
                if value > 0.0:
                    return value
        return 1.0

    def _kv_candidates(self) -> list[tuple[list[str], list[str], list[str]]]:
        """Return, for each layer with keys and values of its own, the possible names of the scales of keys, of values and of
        others."""
        names = self._decoder.config.family.names
        if not names.k or not self._present:
            return []
        written = WrittenNames(self._decoder.config.family, self._present).written
        candidates = []
        for i, layer in enumerate(self._decoder.config.layers):
            if not _has_kv(layer):
                continue
            stems = {
                name: written(one.replace("{i}", str(i)))
                for name, one in (("q", names.q), ("k", names.k), ("v", names.v))
            }
            stems["attn"] = stems["k"].rpartition(".")[0]
            keys, values, others = (
                [one.format(**stems) for one in each] for each in (_OF_KEYS, _OF_VALUES, _OTHERS)
            )
            candidates.append((keys, values, others))
        return candidates


def _has_kv(layer: LayerConfig) -> bool:
    """Return whether a layer stores keys and values of its own: linear attention and convolutions do not."""
    mixer = MIXERS[layer.mixer]
    return layer.kv_from is None and isinstance(mixer, type) and issubclass(mixer, Attention)
