"""Defaults for sampling fields that a request omits: the model's own, checked before they reach the engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from executors.contract import MAX_REPETITION_PENALTY, MIN_REPETITION_PENALTY, ConfigError
from server.schemas.sampling import MAX_TEMPERATURE, MAX_TOP_K

FILE = "generation_config.json"


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """The model's generation_config.json, then OpenAI's defaults."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    frequency_penalty: float = 0.0
    """Not one of transformers' settings, like the next one: a person's own file, --override-generation-config, the default model
    or a model of Ollama's may set it."""
    presence_penalty: float = 0.0
    stated: tuple[str, ...] = field(default=(), compare=False)
    """Names of those that the model's files or the operator give, neutral values included."""

    @property
    def own(self) -> dict[str, float]:
        """The values of `stated`: those in force that are not merely OpenAI's."""
        return {name: getattr(self, name) for name in self.stated}

    @classmethod
    def of(cls, generation_config: Mapping[str, Any], origin: str = FILE) -> SamplingDefaults:
        """Defaults from the values of generation_config.json, which have the same ranges as a request's fields.

        Raises ConfigError naming `origin` and the field: a value outside its range would fail every request.
        """
        temperature = _number(generation_config, "temperature", 0, MAX_TEMPERATURE, origin)
        top_p = _number(generation_config, "top_p", 0, 1, origin)
        top_k = _number(generation_config, "top_k", -1, MAX_TOP_K, origin)
        if top_k is not None and top_k != int(top_k):
            raise ConfigError(f"{origin}: top_k: it should be an integer, not {top_k!r}")
        repetition = _number(
            generation_config, "repetition_penalty", MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY, origin
        )
        min_p = _number(generation_config, "min_p", 0, 1, origin)
        typical_p = _number(generation_config, "typical_p", 0, 1, origin)
        frequency = _number(generation_config, "frequency_penalty", -2, 2, origin)
        presence = _number(generation_config, "presence_penalty", -2, 2, origin)
        do_sample = generation_config.get("do_sample")
        if do_sample is not None and not isinstance(do_sample, bool):
            raise ConfigError(f"{origin}: do_sample: it should be true or false, not {str(do_sample)[:50]!r}")
        if do_sample is False:
            # An explicit `false` says that the model's own default is greedy, and the temperature next to it is the
            # unused one of transformers. A request that sets a temperature still gets it. Without the key, the file's
            # temperature counts: many models that mean to be sampled leave it out.
            temperature = 0.0
        values = {
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "repetition_penalty": repetition,
            "min_p": min_p,
            "typical_p": typical_p,
            "frequency_penalty": frequency,
            "presence_penalty": presence,
        }
        return cls(
            temperature=1.0 if temperature is None else float(temperature),
            top_p=1.0 if top_p is None else float(top_p),
            top_k=0 if top_k is None else int(top_k),
            repetition_penalty=1.0 if repetition is None else float(repetition),
            min_p=0.0 if min_p is None else float(min_p),
            typical_p=1.0 if typical_p is None else float(typical_p),
            frequency_penalty=0.0 if frequency is None else float(frequency),
            presence_penalty=0.0 if presence is None else float(presence),
            stated=tuple(name for name, value in values.items() if value is not None),
        )


def _number(config: Mapping[str, Any], name: str, low: float, high: float, origin: str) -> int | float | None:
    value = config.get(name)
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or math.isnan(value) or not low <= value <= high:
        excerpt = str(value)[:50]
        raise ConfigError(f"{origin}: {name}: it should be a number from {low} to {high}, not {excerpt!r}")
    return value  # type: ignore[no-any-return]  # the check above is not one that mypy follows
