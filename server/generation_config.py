"""Where sampling defaults come from: `--generation-config` and `--override-generation-config`, with vLLM's meanings.

    auto            generation_config.json of the model, where it has one
    none, vllm      neutral defaults: OpenAI's
    a directory     generation_config.json there; its end tokens count beside the model's own

The model's end tokens count in every case: they belong to the model, not to how it is sampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from engine.text.tokenizer_files import read_json
from executors.contract import ConfigError
from server.sampling_defaults import FILE, SamplingDefaults

AUTO = "auto"
NEUTRAL = ("none", "vllm")
"""The second is what people bring along."""
_OVERRIDE = "--override-generation-config"


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """What was chosen: the defaults of requests, and end tokens that the tokenizer's directory does not know."""

    defaults: SamplingDefaults
    end_tokens: frozenset[int]


def choose(choice: str, override: Mapping[str, Any], model_dir: Path) -> GenerationConfig:
    """Read what the two flags name. Raises ConfigError, one line naming the file or the flag."""
    models = model_dir / FILE
    own = read_json(models)
    end_tokens = _end_tokens(own, models)
    if choice == AUTO:
        values, origin = own, str(models)
    elif choice in NEUTRAL:
        values, origin = {}, f"--generation-config {choice}"
    else:
        path = Path(choice).expanduser() / FILE
        if not path.is_file():
            raise ConfigError(
                f"--generation-config {choice}: it should be {AUTO}, {' or '.join(NEUTRAL)}, or a directory with a {FILE}"
            )
        values, origin = read_json(path), str(path)
        end_tokens |= _end_tokens(values, path)
    return GenerationConfig(_defaults(values, origin, override), end_tokens)


def _defaults(values: Mapping[str, Any], origin: str, override: Mapping[str, Any]) -> SamplingDefaults:
    known = {"do_sample", *(field.name for field in fields(SamplingDefaults))}
    unknown = sorted(set(override) - known)
    if unknown:
        raise ConfigError(f"{_OVERRIDE}: {unknown[0]}: no such default; there are {', '.join(sorted(known))}")
    if not override:
        return SamplingDefaults.of(values, origin)
    SamplingDefaults.of(override, _OVERRIDE)  # faults of the flag are named as such
    if "temperature" in override:
        # A file's `do_sample: false` would make it 0 again.
        values = {name: value for name, value in values.items() if name != "do_sample"}
    return SamplingDefaults.of({**values, **override}, origin)


def _end_tokens(values: Mapping[str, Any], path: Path) -> frozenset[int]:
    """`eos_token_id`: one id, several, or none."""
    given = values.get("eos_token_id")
    ids = [] if given is None else given if isinstance(given, list) else [given]
    if not all(type(token) is int and token >= 0 for token in ids):
        raise ConfigError(
            f"{path}: eos_token_id: it should be a token id or several, not {str(given)[:50]!r}"
        )
    return frozenset(ids)
