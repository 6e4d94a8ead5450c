"""Variables of other servers that are set: a line for each, with the setting and the value that do the same here.

Sources of the names: vLLM's module `vllm.envs`, llama.cpp's table of arguments, Ollama's package `envconfig`, and the options of
Text Generation Inference's router and launcher.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from server.settings.foreign.keys import PREFIXES, is_secret
from server.settings.foreign.rows import Kind, filled

Advice = str | Callable[[str], str]
"""What does the same: a flag with `{}` for the value, or a function of the value. Other words say why there is nothing to do,
and stand behind a colon of their own."""

_ON = frozenset({"1", "true", "on", "yes", "enabled"})
_OFF = frozenset({"0", "false", "off", "no", "disabled"})


def _switch(on: str, off: str = "leave it out") -> Callable[[str], str]:
    """Advice for a switch."""
    return lambda value: off if value.lower() in _OFF else on


def _ollama_host(value: str) -> str:
    """OLLAMA_HOST is [scheme://]host[:port], with 11434 for a port that is left out, or that of the scheme."""
    scheme, separator, rest = value.strip().strip("\"'").rpartition("://")
    default = {"http": "80", "https": "443"}.get(scheme, "11434") if separator else "11434"
    rest = rest.partition("/")[0]
    match = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(?::(\d+))?|(.*)", rest)
    assert match is not None
    host, port = (match[1], match[2] or default) if match[3] is None else (match[3], default)
    # Without a host before its port, Ollama listens on all addresses.
    host = host.strip("[]") or ("0.0.0.0" if match[2] else "127.0.0.1")
    return f"--host {filled('{}', host)} --port {port}"


def _ollama_cache_type(value: str) -> str:
    return {"q8_0": "--kv-cache-dtype int8", "f16": "leave it out"}.get(
        value.lower(), "--kv-cache-dtype int8 or fp8"
    )


def _gibibytes(value: str) -> str:
    return f"--kv-cache-memory-bytes {value}GiB" if value.isdecimal() else "--kv-cache-memory-bytes"


def _log_level(value: str) -> str:
    level = {"trace": "debug", "warn": "warning", "critical": "error"}.get(value.lower(), value.lower())
    return f"--log-level {level}" if level in ("debug", "info", "warning", "error") else "--log-level"


VLLM: Mapping[str, Advice] = {
    "VLLM_LOGGING_LEVEL": _log_level,
    "VLLM_CONFIGURE_LOGGING": "--log-level and --log-format",
    "VLLM_LOGGING_CONFIG_PATH": "--log-level and --log-format",
    "VLLM_ATTENTION_BACKEND": "--attention-backend",
    "VLLM_CPU_KVCACHE_SPACE": _gibibytes,
    "VLLM_TARGET_DEVICE": "--device {}",
    "VLLM_BATCH_INVARIANT": _switch("--deterministic"),
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": _switch("--lora-root DIR with --admin-key KEY"),
    "VLLM_LORA_RESOLVER_CACHE_DIR": "--lora-root {} with --lora-on-demand",
    "VLLM_HTTP_MAX_REQUEST_BODY_SIZE": "--max-body-bytes {}",
    "VLLM_PORT": "--port; vLLM's own processes talk over this one",
    "VLLM_HOST_IP": "--host; vLLM's own processes talk over this one",
    "VLLM_SKIP_MODEL_NAME_VALIDATION": "--model-alias '*=NAME'",
    "VLLM_CACHE_ROOT": "the environment variable XDG_CACHE_HOME",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "--recovery-timeout {}",
    "VLLM_DP_SIZE": "cohort ray serve --replicas {}",
}  # fmt: skip

OLLAMA: Mapping[str, Advice] = {
    "OLLAMA_HOST": _ollama_host,
    "OLLAMA_CONTEXT_LENGTH": "--max-model-len {}",
    "OLLAMA_NUM_PARALLEL": "--max-num-seqs {}",
    "OLLAMA_MAX_QUEUE": "--max-queued-seqs {}",
    "OLLAMA_KV_CACHE_TYPE": _ollama_cache_type,
    "OLLAMA_ORIGINS": "--allowed-origins {}",
    "OLLAMA_DEBUG": _switch("--log-level debug"),
    "OLLAMA_DEBUG_LOG_REQUESTS": _switch("--log-prompts"),
    "OLLAMA_FLASH_ATTENTION": "--attention-backend",
    "OLLAMA_GPU_OVERHEAD": "--gpu-memory-utilization",
    "OLLAMA_SCHED_SPREAD": _switch("--tensor-parallel-size N"),
    "OLLAMA_NO_CLOUD": "leave it out: no model runs elsewhere",
    "OLLAMA_KEEP_ALIVE": "leave it out: one model stays loaded, and several have --idle-unload",
    "OLLAMA_MAX_LOADED_MODELS": "--memory BYTES, with several models",
    "OLLAMA_LOAD_TIMEOUT": "--recovery-timeout",
    "OLLAMA_API_KEY": "--api-key: Ollama's server asks for none, and this one is for ollama.com",
}  # fmt: skip

LLAMA_CPP: Mapping[str, Advice] = {
    "LLAMA_ARG_HOST": "--host {}",
    "LLAMA_ARG_PORT": "--port {}",
    "LLAMA_ARG_MODELS_DIR": "--models-dir {}",
    "LLAMA_ARG_CHAT_TEMPLATE": "--chat-template {}",
    "LLAMA_ARG_JINJA": "leave it out: chat templates are always rendered with Jinja",
}  # fmt: skip
"""Beside the variables that `llama_cpp` and `others` have with their flags."""

TGI: Mapping[str, Advice] = {
    "MODEL_ID": "--model {}", "REVISION": "--revision {}", "NUM_SHARD": "--tensor-parallel-size {}",
    "QUANTIZE": "--quantization", "DTYPE": "--dtype {}", "MAX_CONCURRENT_REQUESTS": "--max-queued-seqs {}",
    "MAX_TOTAL_TOKENS": "--max-model-len {}", "MAX_INPUT_TOKENS": "--max-model-len",
    "MAX_BATCH_PREFILL_TOKENS": "--max-num-batched-tokens {}", "MAX_BATCH_TOTAL_TOKENS": "--kv-cache-memory-bytes",
    "MAX_BATCH_SIZE": "--max-num-seqs {}", "KV_CACHE_DTYPE": "--kv-cache-dtype", "SPECULATE": "--num-speculative-tokens {}",
    "CUDA_MEMORY_FRACTION": "--gpu-memory-utilization {}", "JSON_OUTPUT": _switch("--log-format json"),
    "OTLP_ENDPOINT": "--otlp-traces-endpoint", "CORS_ALLOW_ORIGIN": "--allowed-origins {}",
    "LORA_ADAPTERS": "--lora-modules NAME=PATH", "PORT": "--port {}", "PAYLOAD_LIMIT": "--max-body-bytes {}",
}  # fmt: skip
"""Variables of Text Generation Inference, which have no prefix: they are its own where MODEL_ID is set."""

_PREFIXES = dict(zip(PREFIXES, ("vLLM", "SGLang", "llama.cpp", "Ollama"), strict=True))
_READ = frozenset({"OLLAMA_MODELS"})
"""Variables with a meaning here: the folder of Ollama's store."""
_KUBERNETES = re.compile(r"(\w+_)?SERVICE_(HOST|PORT)(_\w+)?|PORT_\w+|\w+_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?")
_ADDRESS = re.compile(r"(tcp|udp|sctp)://.*")
"""What Kubernetes sets in every pod for a Service that has another server's name."""


def advice_of_flags() -> dict[str, Advice]:
    """Advice for the variables that stand beside flags."""
    from server.settings.foreign.command_line import ROWS

    advice: dict[str, Advice] = {}
    for row in ROWS:
        if row.variable is not None:
            words = row.answer if row.kind is Kind.USE else f"leave it out: {row.answer}"
            advice[row.variable] = words
    return advice


def foreign_notes(environ: Mapping[str, str]) -> list[str]:
    """A line for each variable of another server that is set and not empty, in alphabetical order, but for those that are in
    use here. No line repeats a secret."""
    advice_by_name: dict[str, Advice] = {}
    names = [name for name in sorted(environ) if environ[name] and is_foreign(name, environ[name])]
    if any(name.startswith("LLAMA_ARG_") for name in names):
        advice_by_name |= {**advice_of_flags(), **LLAMA_CPP}
    advice_by_name |= {**VLLM, **OLLAMA}
    if environ.get("MODEL_ID"):
        advice_by_name |= TGI
        names += [name for name in sorted(TGI) if environ.get(name) and not _ADDRESS.fullmatch(environ[name])]
    elif environ.get("API_KEY"):
        return [*(_line(name, environ[name], advice_by_name) for name in names), _UNNAMED_KEY]
    return [_line(name, environ[name], advice_by_name) for name in names]


_UNNAMED_KEY = (
    "API_KEY is not read here: use --api-key or COHORT_API_KEY, if requests to this server should need it"
)


def is_foreign(name: str, value: str) -> bool:
    """True for a variable with the prefix of another server, which has no effect on this one."""
    prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
    if prefix is None or name in _READ or (is_secret(name) and name not in OLLAMA):
        return False
    rest = name.removeprefix(prefix)
    return not (_KUBERNETES.fullmatch(rest) or (rest.endswith("PORT") and _ADDRESS.fullmatch(value)))


def _line(name: str, value: str, advice_by_name: Mapping[str, Advice]) -> str:
    advice = advice_by_name.get(name)
    if advice is None:
        server = next(whose for prefix, whose in _PREFIXES.items() if name.startswith(prefix))
        return f"{name} is not read here: {server} alone knows it; leave it out"
    words = filled(advice, value) if isinstance(advice, str) else advice(value)
    return f"{name} is not read here: {words if words.startswith('leave it out') else f'use {words}'}"
