"""Settings of `cohort serve`: file < environment (COHORT_*) < flags given.

All three use one set of names, those of the long flags with underscores, and all three are checked here: an unknown name
or a value of the wrong kind ends in one line and exit code 2.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from server.settings.host_names import fault_of
from server.system.paths import configs_dir

ENV_PREFIX = "COHORT_"
DEFAULT_PRESET = "default"

MAX_TARGET_ITL_MS = 60_000.0
MAX_WRITE_TIMEOUT = 86_400.0
MAX_SPECULATIVE_TOKENS = 32
"""Each is computed, and most of a long guess is wrong."""

_KUBERNETES = re.compile(r"(\w+_)?SERVICE_(HOST|PORT)(_\w+)?|PORT_\w+|\w+_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?")
_KUBERNETES_PORT = re.compile(r"(\w+_)?PORT")
_KUBERNETES_ADDRESS = re.compile(r"(tcp|udp|sctp)://.*")
"""What Kubernetes sets in every pod for a Service called "cohort" or "cohort-something", such as
COHORT_PORT=tcp://10.0.0.1:8000."""
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s,*]+", re.IGNORECASE | re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""What HTTP takes for the name of a method or header."""
_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}


class SettingsError(Exception):
    """One line that says which setting is wrong and what it may be."""


def parse_bytes(value: Any) -> Any:
    """4GiB, 512M, 1000000: a number of bytes with or without a unit."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?\s*", value.lower())
    if match is None:
        raise ValueError("it should be a number of bytes such as 4GiB, 512MiB or 1000000000")
    number = float(match[1]) * _UNITS[match[2]]
    if number > 2**63:
        raise ValueError("it is more than any machine has")
    return int(number)


def _list(value: Any) -> Any:
    """The environment has no lists: commas separate."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _keys(value: Any) -> Any:
    """Keys, with commas between them in the environment. An empty one is a secret that was not filled in: leaving it
    out would open the server to everybody."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list):
        return value
    return [_key(part) for part in parts or [""]]


def _key(value: Any) -> Any:
    """A key as the header will have it: what a file or a secret ends with is not part of it."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        raise ValueError("it is given but empty; leave it out to serve without a key")
    return value.strip()


def _strings(value: Any) -> Any:
    """Strings, several, with commas between them in the environment; or a JSON list of them, as vLLM has it."""
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list):
        return value
    found: list[Any] = []
    for part in parts:
        if isinstance(part, str) and part.lstrip().startswith("["):
            try:
                found += json.loads(part)
            except ValueError:
                raise ValueError("it should be a name, or a JSON list of names") from None
        else:
            found += _list(part) if isinstance(part, str) else [part]
    return found


def _several(value: Any) -> Any:
    """Names, several, with commas between them in the environment."""
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list):
        return value
    return [one for part in parts for one in (_list(part) if isinstance(part, str) else [part])]


def _options(value: Any) -> Any:
    """NAME=VALUE, several; values are read as YAML, so that numbers are numbers."""
    pairs = _list(value)
    if not isinstance(pairs, list):
        return value
    options = {}
    for pair in pairs:
        name, found, text = str(pair).partition("=")
        if not found:
            raise ValueError("it should be NAME=VALUE")
        try:
            options[name.strip()] = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError):  # a date that does not exist is the latter
            raise ValueError("it should be NAME=VALUE, with the value as YAML has it") from None
    return options


def _json_object(value: Any) -> Any:
    """A JSON object written out, or a mapping of a settings file."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError('it should be a JSON object such as {"temperature": 0.5}') from None


Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0)]
Names = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_list)]
Strings = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_strings)]
HostNames = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_several)]
Keys = Annotated[list[str], BeforeValidator(_keys)]
Key = Annotated[str, BeforeValidator(_key)]
Text = Annotated[str, Field(min_length=1)]
Options = Annotated[dict[str, str | int | float | bool], BeforeValidator(_options)]
JsonObject = Annotated[dict[str, Any], BeforeValidator(_json_object)]


class Settings(BaseSettings):
    """Everything `cohort serve` can be told. None means: decided by the model or the machine."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: Text | None = None
    host: Text = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    revision: Text | None = None
    download_dir: Text | None = None
    served_model_name: Names = []
    tokenizer: Text | None = None
    chat_template: Text | None = None
    tool_call_parser: Literal["hermes", "llama3_json", "mistral", "none"] | None = None
    reasoning_parser: Literal["qwen3", "deepseek_r1", "mistral", "none"] | None = None
    reasoning_field: Literal["both", "reasoning", "reasoning_content"] = "both"
    generation_config: Text = "auto"
    override_generation_config: JsonObject = {}
    dtype: str = "auto"
    device: str = "auto"
    max_model_len: Annotated[int, Field(ge=1)] | None = None
    max_num_seqs: Annotated[int, Field(ge=1)] = 64
    max_num_batched_tokens: Annotated[int, Field(ge=1)] = 2048
    block_size: Annotated[int, Field(ge=1, le=1024)] = 16
    kv_cache_memory_bytes: Bytes | None = None
    kv_cache_dtype: Text = "auto"
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.9
    max_queued_seqs: Annotated[int, Field(ge=1)] = 4096
    max_queued_tokens: Annotated[int, Field(ge=1)] = 1 << 22
    max_queue_wait: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    scheduling_policy: Literal["fcfs", "priority", "fair"] | None = None
    target_itl_ms: Annotated[float, Field(ge=0, le=MAX_TARGET_ITL_MS, allow_inf_nan=False)] | None = None
    enable_prefix_caching: bool = True
    cache_salt_per_key: bool = False
    attention_backend: Text = "auto"
    enforce_eager: bool = False
    deterministic: bool = False
    quantization: Text | None = None
    cpu_isa: Text | None = None
    max_in_flight: Annotated[int, Field(ge=1)] | None = None
    num_speculative_tokens: Annotated[int, Field(ge=0, le=MAX_SPECULATIVE_TOKENS)] = 0
    load_format: str = "auto"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    api_key: Annotated[Keys, Field(validate_default=False)] = []
    metrics_key: Key | None = None
    allowed_origins: Strings = []
    allowed_methods: Strings = ["*"]
    allowed_headers: Strings = ["*"]
    allow_credentials: bool = False
    allowed_hosts: HostNames = []
    ssl_keyfile: Text | None = None
    ssl_certfile: Text | None = None
    ssl_ca_certs: Text | None = None
    ssl_cert_reqs: Annotated[int, Field(ge=0, le=2)] = 0
    executor: str = "llm"
    executor_mode: Literal["process", "inline"] = "process"
    executor_option: Options = {}
    recovery_timeout: Annotated[float, Field(gt=0)] = 120.0
    drain_timeout: Annotated[float, Field(ge=0)] = 30.0
    write_timeout: Annotated[float, Field(gt=0, le=MAX_WRITE_TIMEOUT, allow_inf_nan=False)] = 60.0
    max_body_bytes: Bytes = 16 * 2**20
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("*", mode="before")
    @classmethod
    def _only_switches_switch(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML's `true` (and `yes`, and `on`) would be the number 1 for a setting that is a number."""
        switch = info.field_name is not None and cls.model_fields[info.field_name].annotation is bool
        if isinstance(value, bool) and not switch:
            raise ValueError("it should not be true or false")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `load` hands in: it has read file and environment already, and checked their names."""
        assert isinstance(init_settings, InitSettingsSource)
        layers = init_settings.init_kwargs.get("layers", ())
        return tuple(InitSettingsSource(settings_cls, dict(layer)) for layer in layers)


def load(flags: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """The settings, and lines for the log about what was ignored.

    `flags` holds what was given on the command line, by field name, `config` among them. Raises SettingsError.
    """
    given = {name: value for name, value in flags.items() if value is not None and value != []}
    from_env, notes = _from_environment(environ)
    flag, variable = given.pop("config", None), from_env.pop("config", None)
    config = flag or variable
    if config is None and "model" not in given and "model" not in from_env:
        config = DEFAULT_PRESET
    from_file = _from_file(config) if config is not None else {}
    layers = [given, from_env, from_file]
    try:
        settings = Settings(layers=layers)  # type: ignore[call-arg]
    except ValidationError as error:
        raise SettingsError(_explain(error, given, from_env, config)) from None
    if settings.max_num_batched_tokens < settings.max_num_seqs:
        raise SettingsError(
            f"--max-num-batched-tokens {settings.max_num_batched_tokens} is less than --max-num-seqs "
            f"{settings.max_num_seqs}: a step has a token for every running sequence"
        )
    if settings.cache_salt_per_key and not settings.api_key:
        raise SettingsError("--cache-salt-per-key has no effect without --api-key")
    if message := _cors_fault(settings) or _hosts_fault(settings):
        raise SettingsError(message)
    return settings, notes


def _cors_fault(settings: Settings) -> str | None:
    """What is wrong with what pages of other origins may do, None if nothing is."""
    origins = settings.allowed_origins
    if not origins:
        for name in ("allowed_methods", "allowed_headers", "allow_credentials"):
            if name in settings.model_fields_set and getattr(settings, name):
                return f"--{name.replace('_', '-')} has no effect without --allowed-origins"
        return None
    if settings.allow_credentials and "*" in origins:
        return "--allow-credentials with --allowed-origins '*': every page could act for its visitors; name the origins"
    for origin in origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            return f"--allowed-origins {origin[:100]!r}: it should be '*', or such as https://app.example.com, without a path"
    names = [("--allowed-methods", name) for name in settings.allowed_methods]
    names += [("--allowed-headers", name) for name in settings.allowed_headers]
    return next(
        (f"{flag} {name[:100]!r}: no such name" for flag, name in names if not _NAME.fullmatch(name)), None
    )


def _hosts_fault(settings: Settings) -> str | None:
    """What is wrong with the names that the server is to answer to, None if nothing is."""
    faults = ((name, fault_of(name)) for name in settings.allowed_hosts)
    return next((f"--allowed-hosts {name[:100]!r}: {fault}" for name, fault in faults if fault), None)


def _from_environment(environ: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    found: dict[str, Any] = {}
    notes = []
    known = {*Settings.model_fields, "config"}
    for variable in sorted(environ):
        if not variable.startswith(ENV_PREFIX):
            continue
        rest, value = variable.removeprefix(ENV_PREFIX), environ[variable]
        is_address = _KUBERNETES_PORT.fullmatch(rest) and _KUBERNETES_ADDRESS.fullmatch(value)
        if is_address or _KUBERNETES.fullmatch(rest):
            notes.append(f"{variable} is a Kubernetes service link, not a setting: ignored")
        elif rest.lower() in known and rest.isupper():
            found[rest.lower()] = value
        else:
            names = {name.upper() for name in known}
            raise SettingsError(f"{variable}: no such setting{_nearest(rest.upper(), names, ENV_PREFIX)}")
    return found, notes


def _from_file(config: str) -> dict[str, Any]:
    """A path, or the name of a preset."""
    path = Path(config)
    if not path.suffix and not path.exists():
        preset = configs_dir() / f"{config}.yaml"
        if not preset.is_file():
            names = ", ".join(sorted(p.stem for p in configs_dir().glob("*.yaml")))
            raise SettingsError(
                f"--config {config}: no such file, and no preset of that name; presets: {names}"
            )
        path = preset
    try:
        values = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not readable as text"
        raise SettingsError(f"--config {config}: {reason}") from None
    except (yaml.YAMLError, ValueError) as error:  # a date that does not exist is the latter
        raise SettingsError(f"{path}: not valid YAML: {' '.join(str(error).split())[:200]}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: a mapping of settings is expected")
    for name in values:
        if name not in Settings.model_fields:
            raise SettingsError(
                f"{path}: {name}: no such setting{_nearest(str(name), Settings.model_fields)}"
            )
    return values


def _nearest(name: str, known: Any, prefix: str = "") -> str:
    """A hint, or "" where nothing is near. `prefix` is what all names have in common, which makes none of them nearer."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def _explain(
    error: ValidationError, flags: Mapping[str, Any], env: Mapping[str, Any], config: str | None
) -> str:
    detail = error.errors(include_url=False)[0]
    name = str(detail["loc"][0])
    if name in flags:
        source = f"--{name.replace('_', '-')}"
    elif name in env:
        source = f"{ENV_PREFIX}{name.upper()}"
    else:
        source = f"{config}: {name}"
    message = detail["msg"].removeprefix("Value error, ").replace("Input should", "it should")
    if detail["type"].startswith("bool_"):
        message = "it should be true or false"
    secret = name in ("api_key", "metrics_key")
    return f"{source}: {message}" + ("" if secret else f" (not {str(detail['input'])[:100]!r})")
