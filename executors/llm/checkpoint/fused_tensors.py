"""Tensors of a safetensors checkpoint that hold what the family has as several, by the usual names of these.

    mlp.experts.gate_up_proj [experts, 2 * inner, hidden]   gate and up of every expert, gate first; transformers 5 writes them so
    mlp.experts.down_proj [experts, hidden, inner]          for `save_original_format=False`; of Gemma 4 without `mlp.`
    self_attn.qkv_proj.weight, mlp.gate_up_proj.weight      of a dense model, as Phi-3 has them; vLLM loads them in every family

Rows of a part follow each other in the file, so that a part is a range of the file and nothing is copied. A bias and the scales
of FP8 (`..._scale_inv` [experts, rows / 128, columns / 128] and the like) are divided as their weight is.

Families whose gate and up alternate (gpt-oss) have their experts as [in, out], with biases, or in blocks of MXFP4:

    mlp.experts.gate_up_proj [experts, hidden, 2 * inner]             column 2 j is of gate, 2 j + 1 of up
    mlp.experts.gate_up_proj_bias [experts, 2 * inner]
    mlp.experts.down_proj [experts, inner, hidden], down_proj_bias [experts, hidden]
    mlp.experts.gate_up_proj_blocks [experts, 2 * inner, hidden / 32, 16]   a row for each output, see `MxFp4Weight`;
    mlp.experts.gate_up_proj_scales [experts, 2 * inner, hidden / 32]       down_proj_blocks and down_proj_scales alike

transformers 5 calls Mixtral's `block_sparse_moe` `mlp`. The reverse, q, k and v apart in a family whose reference has them in
one, needs no division: `apart`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from executors.contract.errors import ConfigError
from executors.llm.checkpoint.safetensors_file import SafetensorsFile, TensorPart
from executors.llm.model.config import DecoderConfig, MoeConfig, read_config
from executors.llm.model.family import Family, TensorNames
from executors.llm.model.fp8 import GROUP

_OF_LAYER = re.compile(r"(?P<layer>(?:.*\.)?layers\.\d+\.)(?P<own>.+)")
_SIGNS = ("experts.gate_up_proj", "experts.down_proj", ".qkv_proj.", ".mlp.gate_up_proj.", ".mlp.gate.")
"""What is in the names of checkpoints that may have something to divide or to rename."""
_NEW_BLOCK, _OLD_BLOCK = "mlp.", "block_sparse_moe."
_SCALES = ("weight_scale_inv", "weight_scale", "input_scale", "weight_zero_point")
_EXPERT_SCALES = ("scale_inv", "scale")
_ALTERNATING = {"": "weight", "_bias": "bias", "_blocks": "weight_packed", "_scales": "weight_scale"}
"""Of tensors of all experts whose gate and up alternate: the ends of their names, and of those of their parts."""
_UNUSED = ("activation_scale", "input_scale")
"""Static scales of activations, which are quantized dynamically."""


def divide_fused(
    directory: Path, files: Iterable[SafetensorsFile], index: Mapping[str, str]
) -> dict[str, str]:
    """Divide the fused tensors of the files, and give tensors the names of the family. Return the `index`, the file of each
    tensor, with the names of parts. Raises ConfigError for one in a form that cannot be divided.

    config.json is only read if a name looks like it.
    """
    files = list(files)
    present = {name for file in files for name in file.names()} | set(index)
    text = "\n".join(present)
    signs = [sign for sign in _SIGNS if sign in text]
    if not signs or not (directory / "config.json").is_file():
        return dict(index)
    config = read_config(directory)
    if signs == [".mlp.gate."] and not _old_block(config.family):
        return dict(index)  # the usual name of a router
    fused = _Fused(config, present)
    for file in files:
        parts = {name: fused.divided(file, name) for name in file.names() if fused.part_names(name)}
        if parts:
            file.divide(parts)
    return {part: shard for name, shard in index.items() for part in fused.part_names(name) or (name,)}


def apart(config: DecoderConfig, present: Collection[str]) -> DecoderConfig:
    """Return `config` with the names of q, k and v, or of gate and up, apart, where the family has one tensor for them and the
    checkpoint, whose names are `present`, has them apart. vLLM loads such checkpoints of Phi-3."""
    names, usual = config.family.names, TensorNames()
    text = "\n".join(present)
    for role, own in (("qkv", usual.q), ("gate_up", usual.gate)):
        fused = _below_layer(getattr(names, role))
        if fused and f".{fused}." not in text and f".{_below_layer(own)}." in text:
            names = replace(names, qkv="") if role == "qkv" else replace(names, gate_up="")
    return (
        config
        if names is config.family.names
        else replace(config, family=replace(config.family, names=names))
    )


class _Fused:
    """What the names in one checkpoint stand for. `present`: all names in it."""

    def __init__(self, config: DecoderConfig, present: set[str]) -> None:
        self._config = config
        self._family = config.family
        self._present = present
        self._block = _below_layer(config.family.names.expert_gate).partition("experts.")[0]
        self._dense = _dense_parts(config)
        self._parts_of: dict[str, tuple[str, ...]] = {}

    def part_names(self, name: str) -> tuple[str, ...]:
        """Return the names of the parts of a tensor, or its one other name; () if it stays as it is. A fused tensor beside the
        parts themselves stays."""
        if name not in self._parts_of:
            match = None if self._is_other(name) else _OF_LAYER.fullmatch(name)
            own = self._own_names(match["own"]) if match else ()
            parts = tuple(f"{match['layer']}{one}" for one in own) if match else ()
            self._parts_of[name] = () if self._present.intersection(parts) else parts
        return self._parts_of[name]

    def _is_other(self, name: str) -> bool:
        """Whether a tensor belongs to another part of a nested checkpoint, such as a vision tower."""
        return any(fnmatchcase(name, pattern) for pattern in self._family.names.other_parts)

    def _own_names(self, own: str) -> tuple[str, ...]:
        """Return the names below the layer."""
        stem, _, suffix = own.rpartition(".")
        if stem in self._dense:
            return tuple(f"{part}.{suffix}" for part, _ in self._dense[stem])
        if self._config.moe is None:
            return ()
        for role in ("gate_up_proj", "down_proj"):
            block, matched, rest = own.partition(f"experts.{role}")
            if matched and block in (_NEW_BLOCK, _OLD_BLOCK, self._block) and rest[1:] not in _UNUSED:
                end = f".weight_{rest[1:]}" if rest[1:] in _EXPERT_SCALES else ".weight"
                if self._family.names.alternating:
                    end = f".{_ALTERNATING.get(rest, 'weight')}"
                names = _expert_names(self._family, role)
                every = range(self._config.moe.num_experts)
                return tuple(f"{one}{end}".replace("{e}", str(e)) for e in every for one in names)
        renamed = _old_block(self._family) and own.startswith((f"{_NEW_BLOCK}experts.", f"{_NEW_BLOCK}gate."))
        return (_OLD_BLOCK + own.removeprefix(_NEW_BLOCK),) if renamed else ()

    def divided(self, file: SafetensorsFile, name: str) -> dict[str, TensorPart]:
        """Return where in a tensor the parts are. Raises ConfigError."""
        names, shape = self.part_names(name), file.shape(name)
        match = _OF_LAYER.fullmatch(name)
        assert match is not None
        own = match["own"]
        stem, _, suffix = own.rpartition(".")
        if stem in self._dense:
            sizes = [rows for _, rows in self._dense[stem]]
            if suffix not in ("weight", "bias", *_SCALES):
                raise _refused(file, name, "plain numbers, FP8 and int8")
            parts = _by_rows(shape, sizes, scale=suffix in _SCALES)
            return _checked(parts, file, name, names, [sum(sizes), "..."])
        if len(names) == 1 and names[0].partition(_OLD_BLOCK)[2] == own.removeprefix(_NEW_BLOCK):
            return {names[0]: TensorPart(0, shape)}
        return self._of_experts(file, name, names, own)

    def _of_experts(
        self, file: SafetensorsFile, name: str, names: tuple[str, ...], own: str
    ) -> dict[str, TensorPart]:
        moe, hidden = self._config.moe, self._config.hidden_size
        assert moe is not None
        gated, inner = "gate_up_proj" in own, moe.intermediate_size
        rest = own.rpartition("_proj")[2]
        sizes = [inner, inner] if gated else [hidden]
        needed = [moe.num_experts, sum(sizes), hidden if gated else inner]
        if self._family.names.alternating:
            if rest not in _ALTERNATING:
                raise _refused(file, name, "plain numbers and MXFP4 (blocks and scales)")
            shape = file.shape(name)
            needed = _alternating_shape(moe, hidden, gated, rest)
            if list(shape) != needed:
                raise _misshapen(file, name, needed)
            return dict(zip(names, _alternating_parts(shape, gated, turned=not rest), strict=True))
        if rest and rest[1:] not in _EXPERT_SCALES:
            raise _refused(file, name, "plain numbers and FP8 with scale_inv")
        shape = file.shape(name)
        if (not rest and list(shape) != needed) or not shape or shape[0] != moe.num_experts:
            raise _misshapen(file, name, needed)
        parts = _by_rows(shape[1:], sizes, scale=bool(rest))
        count = math.prod(shape[1:])
        every = parts and [
            TensorPart(e * count + one.first, one.shape) for e in range(moe.num_experts) for one in parts
        ]
        return _checked(every, file, name, names, needed)


def _alternating_shape(moe: MoeConfig, hidden: int, gated: bool, rest: str) -> list[int]:
    """Return the shape of a tensor of all experts; `rest`: the end of its name, see `_ALTERNATING`."""
    columns, rows = (hidden, 2 * moe.intermediate_size) if gated else (moe.intermediate_size, hidden)
    own = {
        "": [columns, rows],
        "_bias": [rows],
        "_blocks": [rows, columns // 32, 16],
        "_scales": [rows, columns // 32],
    }
    return [moe.num_experts, *own[rest]]


def _alternating_parts(shape: tuple[int, ...], gated: bool, turned: bool) -> list[TensorPart]:
    """Return the parts of every expert: gate and up, whose rows alternate, or down. `turned`: the file has [experts, columns,
    rows]; otherwise a part's columns are all that follow its rows."""
    count = 2 if gated else 1
    size = math.prod(shape[1:])
    columns, rows = shape[1:] if turned else (math.prod(shape[2:]), shape[1])
    own = (rows // count, columns)
    step, strides = (1, (count, rows)) if turned else (columns, (count * columns, 1))
    dimensions = min(2, len(shape) - 1)  # a bias has rows alone
    return [
        TensorPart(e * size + i * step, own[:dimensions], strides[:dimensions])
        for e in range(shape[0])
        for i in range(count)
    ]


def _dense_parts(config: DecoderConfig) -> dict[str, tuple[tuple[str, int], ...]]:
    """Return, by the names of fused modules that the family has apart, the modules' names and numbers of rows."""
    names = config.family.names
    parts_of: dict[str, tuple[tuple[str, int], ...]] = {}
    if not names.qkv:
        q, k, v = (_below_layer(one) for one in (names.q, names.k, names.v))
        sizes = ((q, config.q_size), (k, config.kv_size), (v, config.kv_size))
        parts_of[f"{q.rpartition('.')[0]}.qkv_proj"] = sizes
    if names.gate and not names.gate_up:
        gate, up = _below_layer(names.gate), _below_layer(names.up)
        inner = config.intermediate_size
        parts_of[f"{gate.rpartition('.')[0]}.gate_up_proj"] = ((gate, inner), (up, inner))
    return parts_of


def _expert_names(family: Family, role: str) -> tuple[str, ...]:
    names = family.names
    whole = (names.expert_gate, names.expert_up) if role == "gate_up_proj" else (names.expert_down,)
    return tuple(map(_below_layer, whole))


def _old_block(family: Family) -> bool:
    return _below_layer(family.names.router).startswith(_OLD_BLOCK)


def _below_layer(template: str) -> str:
    return template.partition("{i}.")[2]


def _by_rows(shape: tuple[int, ...], sizes: list[int], scale: bool) -> list[TensorPart] | None:
    """Divide the rows of a tensor into parts of these sizes; None if it has another number of rows. A scale may be one number
    for all parts, or one for each, or have a row for each block of rows."""
    total, count = sum(sizes), math.prod(shape)
    if shape and shape[0] == total:
        return _cut(shape, sizes)
    if not scale:
        return None
    if count == 1 or shape[0] == 1:
        return [TensorPart(0, shape)] * len(sizes)
    if shape == (len(sizes),):
        return _cut(shape, [1] * len(sizes))
    if len(shape) == 2 and shape[0] == -(-total // GROUP) and not any(size % GROUP for size in sizes[:-1]):
        return _cut(shape, [-(-size // GROUP) for size in sizes])
    return None


def _cut(shape: tuple[int, ...], sizes: list[int]) -> list[TensorPart]:
    row, begin, parts = math.prod(shape[1:]), 0, []
    for size in sizes:
        parts.append(TensorPart(begin * row, (size, *shape[1:])))
        begin += size
    return parts


def _checked(
    parts: list[TensorPart] | None,
    file: SafetensorsFile,
    name: str,
    names: tuple[str, ...],
    needed: Sequence[object],
) -> dict[str, TensorPart]:
    if parts is None:
        raise _misshapen(file, name, needed)
    return dict(zip(names, parts, strict=True))


def _misshapen(file: SafetensorsFile, name: str, needed: Sequence[object]) -> ConfigError:
    expected = str(needed).replace("'", "")
    return ConfigError(
        f"{file.path}: tensor {name} has shape {list(file.shape(name))}; {expected} fits config.json, or scales of such a weight"
    )


def _refused(file: SafetensorsFile, name: str, supported: str) -> ConfigError:
    return ConfigError(
        f"{file.path}: tensor {name} holds several weights in one in a form that is not supported; supported: {supported}; save "
        "the weights apart"
    )
