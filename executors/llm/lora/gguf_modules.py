"""Modules of an adapter with the names of GGUF files: which weights of a model they are, and the usual order of their rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from executors.contract.errors import ConfigError
from executors.gguf.file import GgufTensor
from executors.llm.model.config import DecoderConfig
from executors.llm.model.families import family_of
from executors.llm.model.gguf_names import names_of_weight
from executors.llm.model.gguf_rows import served_by
from executors.lora import LoraFile, Module

_SAME_LAYOUT = {
    "llama": ("llama", "mistral", "mixtral", "mistral3_text"),
    "mistral3": ("mistral", "mistral3_text", "ministral3", "ministral3_text"),
    "gemma3": ("gemma3", "gemma3_text"),
    "qwen3vl": ("qwen3", "qwen3_vl_text"),
    "qwen35": ("qwen3_5", "qwen3_5_text"),
    "qwen35moe": ("qwen3_5_moe", "qwen3_5_moe_text"),
}
"""Families whose weights have the names and order of an architecture; elsewhere the one family that serves it."""


@dataclass(frozen=True, slots=True)
class GgufModules:
    """`usual`: the usual name of each module's weight, without `.weight`; `heads`: see `Stored.heads`; `tiled`: see `Row`."""

    usual: dict[str, str]
    heads: dict[str, int]
    tiled: bool

    def in_usual_order(self, module: Module) -> Module:
        """Return the module with rows of B in the usual order: h n + 2 j + p of heads of n rows goes to h n + p n / 2 + j."""
        heads = self.heads.get(module.name, 0)
        if not heads:
            return module
        halves = module.b.reshape(heads, -1, 2, module.b.shape[1])
        return replace(module, b=np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(module.b.shape))


def gguf_modules(file: LoraFile, config: DecoderConfig) -> GgufModules:
    """Map the modules of an adapter; `config`: of the whole model. Raises ConfigError for another architecture than the model's,
    and for a module that is no single weight of it."""
    arch, family = str(file.architecture), config.family.name
    row = served_by(arch)
    served = None if row is None else family_of(row.served)
    families = _SAME_LAYOUT.get(arch, () if served is None else (served.name,))
    if row is None or family not in families:
        raise ConfigError(
            f"{file.label}: general.architecture {arch[:60]!r} is not the model's, whose family is {family}"
        )
    usual, heads = {}, {}
    for name in file.names:
        outputs, inputs, _ = file.shapes(name)
        weight = GgufTensor(f"{name}.weight", "F32", (outputs, inputs), 0, 0, file.path)
        stored_names = names_of_weight(weight, config, row)
        if len(stored_names) != 1:
            raise ConfigError(
                f"{file.label}: {name[:200]}: adapters of this weight are not supported; merge the adapter into the model and "
                "serve that"
            )
        [(whole, stored)] = stored_names.items()
        usual[name], heads[name] = whole.removesuffix(".weight"), stored.heads
    return GgufModules(usual, heads, row.tiled)
