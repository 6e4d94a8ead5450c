"""Sources of sampling defaults: `--generation-config` and `--override-generation-config`, with vLLM's meanings.

    auto            generation_config.json of the model, if it has one; for the default model, values that come with this server;
                    for a model of Ollama's store, its parameters, which count before the file's
    none, vllm      neutral defaults: OpenAI's
    a directory     generation_config.json there; its end tokens count beside the model's own

The model's end tokens count in every case: they belong to the model, not to how it is sampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from engine.text.tokenizer_files import end_tokens, read_json
from executors.contract import ConfigError
from server.model_defaults.sampling import FILE, SamplingDefaults
from server.model_files.prepared import model_file

AUTO = "auto"
NEUTRAL = ("none", "vllm")
"""Names of the neutral defaults; the second is vLLM's."""
NOT_USED: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences", "guidance_scale"), (1,)),
    **dict.fromkeys(("encoder_repetition_penalty",), (1,)),
    **dict.fromkeys(
        ("penalty_alpha", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "min_length"), (0,)
    ),
    **dict.fromkeys(("min_new_tokens", "epsilon_cutoff", "eta_cutoff", "diversity_penalty"), (0,)),
    **dict.fromkeys(("bad_words_ids", "force_words_ids", "suppress_tokens", "begin_suppress_tokens"), ([],)),
    **dict.fromkeys(("sequence_bias", "stop_strings", "constraints"), ([], {}, "")),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty"), ()),
    **dict.fromkeys(("watermarking_config", "dola_layers", "top_h", "max_time"), ()),
}
"""Settings of generation_config.json that change an answer and are not supported, with the values at which they do not."""
_OVERRIDE = "--override-generation-config"
_FIELDS = ("do_sample", *(field.name for field in fields(SamplingDefaults) if field.compare))
"""Settings that change how a request without its own is sampled."""


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """The chosen defaults of requests, and end tokens that the tokenizer's directory does not list. `warnings`: settings in the
    files that are not used, a sentence each."""

    defaults: SamplingDefaults
    end_tokens: frozenset[int]
    warnings: tuple[str, ...] = ()
    source: str = ""
    """Where the defaults of sampling come from, for people; "": nothing sets any, and they are OpenAI's."""


def choose(
    choice: str,
    override: Mapping[str, Any],
    model_dir: Path,
    shipped: Mapping[str, Any] | None = None,
    packaged: Mapping[str, Any] | None = None,
) -> GenerationConfig:
    """Read the defaults that the two flags select. `shipped`: values that this server adds to the model's own where it has none;
    `packaged`: values of the model's package, which replace those of its file.

    Raises ConfigError with one line that names the file or the flag."""
    models = model_dir / FILE
    own = read_json(models)
    ends, warnings = end_tokens(own.get("eos_token_id"), str(models))
    if choice == AUTO:
        file = model_file(model_dir)
        values, origin = {**(shipped or {}), **own}, str(models if file is None else file)
        sources = [
            (own, FILE if file is None else f"general.sampling.* of {file.name}"),
            (shipped or {}, "Cohort, for its default model"),
            (packaged or {}, "the parameters of Ollama's model"),
        ]
        if packaged:
            values = {**_sampled(values, packaged), **packaged}
    elif choice in NEUTRAL:
        values, origin = {}, f"--generation-config {choice}"
        sources = [({"temperature": 1.0}, origin)]
    else:
        path = Path(choice).expanduser() / FILE
        if not path.is_file():
            raise ConfigError(
                f"--generation-config {choice}: it should be {AUTO}, {' or '.join(NEUTRAL)}, or a directory with a {FILE}"
            )
        values, origin = read_json(path), str(path)
        sources = [(values, str(path))]
        more, notes = end_tokens(values.get("eos_token_id"), str(path))
        ends, warnings = ends | more, warnings + notes
    warnings += _unread(values, origin)
    sources.append((override, _OVERRIDE))
    source = ", ".join(name for some, name in sources if any(some.get(key) is not None for key in _FIELDS))
    defaults = _defaults(values, origin, override)
    if choice in NEUTRAL:
        # The operator's choice: a client that has a default for models without one leaves these alone.
        defaults = replace(defaults, stated=tuple(one.name for one in fields(defaults) if one.compare))
    return GenerationConfig(defaults, ends, tuple(warnings), source)


def _unread(values: Mapping[str, Any], origin: str) -> list[str]:
    """A sentence that names the settings which change the output of transformers and are not supported here."""
    unused = [
        name
        for name, neutral in NOT_USED.items()
        if values.get(name) is not None and values[name] not in neutral
    ]
    return [f"{origin}: not used: {', '.join(unused)}"] if unused else []


def _defaults(values: Mapping[str, Any], origin: str, override: Mapping[str, Any]) -> SamplingDefaults:
    unknown = sorted(set(override) - set(_FIELDS))
    if unknown:
        raise ConfigError(
            f"{_OVERRIDE}: {unknown[0]}: no such default; there are {', '.join(sorted(_FIELDS))}"
        )
    if not override:
        return SamplingDefaults.of(values, origin)
    SamplingDefaults.of(override, _OVERRIDE)  # faults of the flag are named as such
    return SamplingDefaults.of({**_sampled(values, override), **override}, origin)


def _sampled(values: Mapping[str, Any], by: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a file beside others: a `do_sample: false` of the file would make a temperature of theirs 0 again."""
    return {name: value for name, value in values.items() if name != "do_sample" or "temperature" not in by}
