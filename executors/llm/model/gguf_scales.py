"""The scales that lie beside weights in NVFP4 in a GGUF file. No torch here.

    blk.0.attn_q.scale        float32 [1]        factor of the products with blk.0.attn_q.weight, and so of its numbers
    blk.0.ffn_up_exps.scale   float32 [experts]  a factor for each expert
    blk.0.attn_q.input_scale  float32            of activations in NVFP4, which are not quantized so here: without effect

Other types of weights have none in llama.cpp.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from executors.contract.errors import ConfigError
from executors.gguf.file import GgufFile, GgufTensor

_ENDINGS = (".scale", ".input_scale")


@dataclass(frozen=True, slots=True)
class WeightScales:
    """`of`: float32 numbers by the name of their weight. `names`: all tensors that are such scales."""

    of: dict[str, tuple[float, ...]]
    names: frozenset[str]


def weight_scales(gguf: GgufFile) -> WeightScales:
    """Read the scales of a file's weights in NVFP4. Raises ConfigError for one that fits no such weight or is not finite."""
    names, by_path = set(), defaultdict[object, list[tuple[str, GgufTensor]]](list)
    for name, tensor in gguf.tensors.items():
        ending = next((one for one in _ENDINGS if name.endswith(one)), None)
        weight = None if ending is None else gguf.tensors.get(f"{name.removesuffix(ending)}.weight")
        if ending is None or weight is None or weight.type != "NVFP4":
            continue
        names.add(name)
        if ending == ".scale":
            count = weight.shape[0] if len(weight.shape) == 3 else 1
            if tensor.type != "F32" or tensor.shape not in ((count,), (1,)):
                raise ConfigError(
                    f"{tensor.path}: tensor {name} is {tensor.type} of shape {list(tensor.shape)}; F32 of shape [{count}] is "
                    "needed"
                )
            by_path[tensor.path].append((weight.name, tensor))
    return WeightScales(
        {name: numbers for path in by_path for name, numbers in _read(by_path[path])}, frozenset(names)
    )


def _read(scales: list[tuple[str, GgufTensor]]) -> list[tuple[str, tuple[float, ...]]]:
    path, values = scales[0][1].path, []
    try:
        with path.open("rb") as file:
            for name, tensor in scales:
                file.seek(tensor.offset)
                numbers = np.frombuffer(file.read(tensor.num_bytes), "<f4")
                if not len(numbers) or not np.isfinite(numbers).all():
                    raise ConfigError(
                        f"{path}: tensor {tensor.name} is cut short or has numbers that are not finite"
                    )
                values.append((name, tuple(map(float, numbers))))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    return values
