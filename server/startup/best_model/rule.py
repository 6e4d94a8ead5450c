"""Which model is the best one: a rule of a few lines that a person can check.

    excluded     what is broken or not supported; embedding models, rerankers, adapters, drafts, guards and models for speech, by
                 their files or their names; base models; models without a chat template; models of up to 150 million parameters;
                 what leaves less than 4,096 tokens of context in this machine's memory; on a CPU what would generate fewer than 4
                 tokens per second
    the first    by effective parameters: those of a dense model, and of a mixture of experts the geometric mean of all and those
                 that one token uses. Models within a tenth of each other are equal in this
    among equals those of 4 to 9 bits per weight, then those of more, then those of fewer; and the newest file

Sizes in bits per weight come from the name of the format until the executor has read the headers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from server.model_files.folders import Found
from server.model_files.headers import Experts

LEAST_PARAMETERS = 150_000_000
"""A model must have more: the default model, which comes with Cohort, has 135 million."""
LEAST_CONTEXT = 4096
"""Tokens; or the model's own context, if that is shorter."""
LEAST_RATE = 4.0
"""Tokens per second of one stream on a CPU, by `tokens_per_second`."""
_BANDWIDTH_PER_THREAD = 10e9
_MOST_BANDWIDTH = 80e9
"""Bytes per second that a CPU reads weights at: a guess, below what two cores of a Zen 4 reach (30e9)."""
_GOOD_BITS = (4.0, 9.0)

_OTHER_USE = re.compile(
    r"(?<![a-z])(?P<word>embed\w*|e5|bge|gte|rerank\w*|reranker|colbert|cross-encoder|reward|draft\w*|eagle\d?|medusa|speculator\w*|"
    r"mmproj|lora|adapter|imatrix|tts|asr|whisper|vocoder|guard\w*|shieldgemma|guardian|classifier|random|dummy)"
    r"(?![a-z])",
    re.IGNORECASE,
)
"""Words of a name that say that a model is not for chats."""
_BASE = re.compile(r"(?<![a-z])(base|pt|pretrain\w*)(?![a-z])", re.IGNORECASE)
_CLOUD = re.compile(r"(:|-)cloud$")

_FORMAT_BITS = re.compile(r"\bI?Q(\d)|\b(?:T|TQ)(\d)", re.IGNORECASE)
_NAMED_BITS = (
    ("mxfp4", 4.5), ("nvfp4", 4.5), ("gptq", 4.5), ("awq", 4.5), ("bitsandbytes", 4.5), ("fp8", 8.0),
    ("compressed-tensors", 8.0), ("float32", 32.0), ("f32", 32.0), ("bf16", 16.0), ("f16", 16.0),
)  # fmt: skip


def excluded_by_name(model: Found, memory: int) -> str | None:
    """Why a model is not chosen, as far as its name and its size on disk say it; None if nothing does. `memory`: bytes that
    weights can have at most."""
    if model.problem is not None:
        return model.problem
    name = model.name.rstrip("/")
    short = "/".join(name.split("/")[-2:])
    if _CLOUD.search(name):
        return "it runs in Ollama's cloud"
    if (other := _OTHER_USE.search(short)) is not None:
        return f"its name says {other['word']!r}: not for chats"
    if _BASE.search(short):
        return "a base model, not trained for chats"
    if guessed_parameters(model) <= LEAST_PARAMETERS:
        return "too small: at most 150 million parameters"
    if model.size > memory:
        return f"its weights ({model.size / 1e9:.1f} GB) do not fit into memory"
    return None


def guessed_parameters(model: Found) -> float:
    """Return the number of parameters that a file of this size and format has, about."""
    return 8 * model.size / format_bits(model.format)


def format_bits(kind: str) -> float:
    """Return the bits per weight of a format as `cohort list` names it: `GGUF Q4_K_M`, `safetensors bfloat16 awq`."""
    text = kind.lower()
    for name, bits in _NAMED_BITS[:7]:
        if name in text:
            return bits
    if (digit := _FORMAT_BITS.search(kind)) is not None:
        return int(digit[1] or digit[2]) + 0.7
    # A GGUF file whose name says nothing: most are quantized to about four bits.
    return next((bits for name, bits in _NAMED_BITS[7:] if name in text), 4.8 if text == "gguf" else 16.0)


def tokens_per_second(num_bytes: float, experts: Experts | None, threads: int) -> float:
    """Return what one stream gets on a CPU, about: each token reads the weights that it uses once."""
    bandwidth = min(_BANDWIDTH_PER_THREAD * threads, _MOST_BANDWIDTH)
    return bandwidth / max(1.0, num_bytes * (experts.active_share if experts else 1.0))


def order(parameters: float, experts: Experts | None, size: int, changed: float) -> tuple[float, ...]:
    """Return a key by which the better of two models sorts first. `size`: bytes on the disk; `changed`: time of
    the newest file."""
    effective = parameters * math.sqrt(experts.active_share if experts else 1.0)
    bits = 8 * size / max(1.0, parameters)
    low, high = _GOOD_BITS
    kind = 0 if low <= bits <= high else 1 if bits > high else 2
    away = max(0.0, low - bits, bits - high)
    return (-round(math.log(max(1.0, effective)) / math.log(1.1)), kind, round(away, 1), -changed)


def excluded_by_facts(facts: Mapping[str, Any], experts: Experts | None) -> str | None:
    """Why a model is not chosen, by the executor's tool `fits`; None if nothing is against it."""
    if facts["problem"] is not None:
        return str(facts["problem"])
    if not facts["generates"]:
        return "it generates no text"
    if facts["parameters"] <= LEAST_PARAMETERS:
        return "too small: at most 150 million parameters"
    if facts["context"] < min(LEAST_CONTEXT, facts["context_length"]):
        return f"memory leaves a context of {facts['context']:,} tokens"
    if facts["device"] == "cpu":
        rate = tokens_per_second(facts["loaded_bytes"], experts, facts["threads"])
        if rate < LEAST_RATE:
            return f"about {rate:.1f} tokens per second on this CPU"
    return None
