"""The parameters of a model of Ollama's: a Modelfile's PARAMETER lines, which are defaults of requests.

Names and meanings are those of Ollama's api/types.go. Each is read, without effect here, or named in a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from executors.contract import ConfigError
from server.model_files.ollama_package import Package
from server.schemas.sampling import MAX_OUTPUT_TOKENS

SAMPLING = {
    "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "typical_p": "typical_p",
    "repeat_penalty": "repetition_penalty", "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
}  # fmt: skip
"""Parameters that are defaults of sampling, with the names of these here."""
OTHERS = ("stop", "seed", "num_predict", "num_ctx", "repeat_last_n")
HARMLESS: dict[str, str] = {
    **dict.fromkeys(
        (
            "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "use_mmap", "use_mlock", "low_vram", "f16_kv", "vocab_only",
            "logits_all", "num_gqa", "embedding_only", "draft_num_predict",
        ),
        "a setting of Ollama's loader",
    ),
    "num_keep": "counts when a full context is shifted, and none is shifted here",
    "mirostat_tau": "counts with mirostat only",
    "mirostat_eta": "counts with mirostat only",
}  # fmt: skip
"""Parameters without effect, each with the reason."""
NOT_USED: dict[str, tuple[Any, ...]] = {
    "mirostat": (0,),
    "tfs_z": (1, 0),
    "penalize_newline": (True,),
    "rope_frequency_base": (0,),
    "rope_frequency_scale": (0, 1),
}
"""Parameters of older versions that change answers, with the values at which they do not. A note names them, and unknown ones."""
_REST = "penalties count all tokens of prompt and answer"


@dataclass(frozen=True, slots=True)
class OllamaParams:
    """`sampling`: values by the names of generation_config.json. `context`: the length of the context in tokens. `notes`: a
    sentence for each parameter that is not used."""

    sampling: Mapping[str, Any]
    stop: tuple[str, ...] = ()
    seed: int | None = None
    max_tokens: int | None = None
    context: int | None = None
    notes: tuple[str, ...] = ()


def read_params(package: Package) -> OllamaParams:
    """Read the parameters. Raises ConfigError naming the model and the parameter for a value that is of another type."""
    where, notes = package.where, []
    values = {name: value for name, value in package.params.items() if value is not None}
    sampling = {
        SAMPLING[name]: _number(where, name, value) for name, value in values.items() if name in SAMPLING
    }
    last = _whole(where, "repeat_last_n", values)
    if last == 0:  # nothing is looked at, so nothing is penalised
        sampling |= {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    elif last is not None and last > 0:
        notes.append(f"{where}: parameter repeat_last_n {last} is not used: {_REST}")
    for name, value in values.items():
        if name in SAMPLING or name in OTHERS or name in HARMLESS:
            continue
        if not any(value == one or str(value).lower() == str(one).lower() for one in NOT_USED.get(name, ())):
            notes.append(f"{where}: parameter {name[:60]} {str(value)[:60]} is not used")
    limit, context = _whole(where, "num_predict", values), _whole(where, "num_ctx", values)
    seed = _whole(where, "seed", values)
    return OllamaParams(
        sampling,
        _stops(where, values.get("stop")),
        None if seed == -1 else seed,
        min(limit, MAX_OUTPUT_TOKENS) if limit is not None and limit > 0 else None,
        context if context is not None and context > 0 else None,
        tuple(notes),
    )


def _single(value: Any) -> Any:
    """The value of a list of one: a Modelfile may repeat any parameter."""
    return value[-1] if isinstance(value, list) and value else value


def _number(where: str, name: str, value: Any) -> int | float:
    value = _single(value)
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            pass
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{where}: parameter {name} is {str(value)[:60]!r}; a number is needed")
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _whole(where: str, name: str, values: Mapping[str, Any]) -> int | None:
    if name not in values:
        return None
    value = _number(where, name, values[name])
    if not isinstance(value, int) or not -(2**63) <= value < 2**64:
        raise ConfigError(f"{where}: parameter {name} is {str(value)[:60]}; a whole number is needed")
    return value


def _stops(where: str, value: Any) -> tuple[str, ...]:
    stops = (
        [value]
        if isinstance(value, str)
        else value
        if isinstance(value, list)
        else None
        if value is not None
        else []
    )
    if stops is None or not all(isinstance(one, str) for one in stops):
        raise ConfigError(f"{where}: parameter stop is {str(value)[:60]!r}; a list of texts is needed")
    return tuple(dict.fromkeys(one for one in stops if one))
