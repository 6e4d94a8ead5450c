"""Flags of other servers, and what to use in their place. Standard library only, so that `cohort --help` stays fast.

`tools/migrate_docs.py` makes tables of docs/migrate.md from them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

VLLM: dict[str, str] = {
    "--uvicorn-log-level": "--log-level",
    "--disable-log-requests": "--log-level warning", "--enable-log-requests": "--log-level info",
    "--kv-cache-memory": "--kv-cache-memory-bytes", "--max-seq-len": "--max-model-len",
    "--async-scheduling": "--max-in-flight 2", "--no-async-scheduling": "--max-in-flight 1",
    "--enable-deterministic-inference": "--deterministic",
    "--speculative-model": "--speculative-config", "-q": "--quantization", "--num-gpu-blocks-override": "--kv-cache-memory-bytes",
    "--hf-overrides": "--classifier-from-token NO,YES for a reranker; nothing else is overridden",
}  # fmt: skip

SGLANG: dict[str, str] = {
    "--model-path": "the positional MODEL, or --model", "--tokenizer-path": "--tokenizer",
    "--context-length": "--max-model-len", "--mem-fraction-static": "--gpu-memory-utilization",
    "--max-running-requests": "--max-num-seqs", "--max-total-tokens": "--kv-cache-memory-bytes",
    "--chunked-prefill-size": "--max-num-batched-tokens", "--max-prefill-tokens": "--max-num-batched-tokens",
    "--page-size": "--block-size", "--random-seed": "--seed", "--served-model-names": "--served-model-name",
    "--watchdog-timeout": "--recovery-timeout", "--schedule-policy": "--scheduling-policy",
    "--enable-priority-scheduling": "--scheduling-policy priority",
    "--disable-radix-cache": "--no-enable-prefix-caching", "--disable-overlap-schedule": "--max-in-flight 1",
    "--disable-cuda-graph": "--enforce-eager",
    "--speculative-num-draft-tokens": "--num-speculative-tokens", "--speculative-algorithm": "--speculative-config",
    "--speculative-draft-model-path": "--speculative-config", "--lora-paths": "--lora-modules",
    "--max-loras-per-batch": "--max-loras", "--tp": "--tensor-parallel-size", "--tp-size": "--tensor-parallel-size",
    "--pp": "--pipeline-parallel-size", "--pp-size": "--pipeline-parallel-size",
}  # fmt: skip

LLAMA_CPP: dict[str, str] = {
    "-m": "the positional MODEL, or --model", "-c": "--max-model-len", "--ctx-size": "--max-model-len",
    "-ngl": "--device", "--gpu-layers": "--device", "--n-gpu-layers": "--device", "-np": "--max-num-seqs",
    "--parallel": "--max-num-seqs", "-b": "--max-num-batched-tokens", "--batch-size": "--max-num-batched-tokens",
    "-ub": "--max-num-batched-tokens", "--ubatch-size": "--max-num-batched-tokens", "-a": "--served-model-name",
    "--alias": "--served-model-name", "-s": "--seed",
    "--chat-template-file": "--chat-template", "-dev": "--device", "-hf": "the positional MODEL",
    "--hf-repo": "the positional MODEL", "--n-ctx": "--max-model-len", "--cache-prompt": "--enable-prefix-caching",
    "--no-cache-prompt": "--no-enable-prefix-caching", "-fa": "--attention-backend", "--flash-attn": "--attention-backend",
    "-ctk": "--kv-cache-dtype", "--cache-type-k": "--kv-cache-dtype", "-ctv": "--kv-cache-dtype",
    "--model-draft": "--speculative-config", "-md": "--speculative-config", "--draft": "--num-speculative-tokens",
    "--draft-max": "--num-speculative-tokens", "--cache-type-v": "--kv-cache-dtype",
    "--lora": "--lora-modules NAME=PATH, with an adapter in PEFT's format",
}  # fmt: skip

HABIT: dict[str, str] = {
    "--model-id": "the positional MODEL, or --model", "--max-total-length": "--max-model-len",
    "--max-concurrent-requests": "--max-num-seqs", "--speculate": "--num-speculative-tokens",
    "--hostname": "--host", "--listen": "--host", "-p": "--port",
    "--model-name": "--served-model-name", "--hf-token": "the environment variable HF_TOKEN",
    "--model-len": "--max-model-len", "-h": "--help", "--ssl-key-file": "--ssl-keyfile",
    "--ssl-cert-file": "--ssl-certfile", "--cors-allow-origins": "--allowed-origins",
    "--cors-allow-origin": "--allowed-origins",
}  # fmt: skip
"""Flags of Text Generation Inference, and common spellings."""

ELSEWHERE: dict[str, str] = VLLM | SGLANG | LLAMA_CPP | HABIT
"""Flags of other servers, each with the flag to use here."""

ALWAYS_ON: dict[str, str] = {
    "--enable-chunked-prefill": "prompts are always prefilled in chunks; leave it out",
    "--cont-batching": "batching is always continuous; leave it out",
    "-cb": "batching is always continuous; leave it out",
    "--metrics": "/metrics is always there; leave it out",
    "--enable-metrics": "/metrics is always there; leave it out",
    "--jinja": "chat templates are always rendered with Jinja; leave it out",
    "--enable-auto-tool-choice": "tool calls are always parsed when tools are offered; leave it out",
    "--trust-remote-code": "code from model directories is never run; leave it out",
}

NOT_YET = frozenset(
    {
        "--data-parallel-size", "-dp", "--dp", "--dp-size", "--enable-expert-parallel", "--calculate-kv-scales",
        "--tokenizer-revision",
        "--enable-ssl-refresh", "--ssl-ciphers", "--ssl-keyfile-password", "--uds",
        "--guided-decoding-backend", "--structured-outputs-config", "--grammar-backend",
        "--runner", "--task", "--is-embedding", "--embedding", "--embeddings", "--rope-scaling",
        "--cpu-offload-gb", "--threads", "-t", "--root-path", "--max-logprobs",
        "--default-chat-template-kwargs", "--pooling",
    }
)  # fmt: skip
"""Known from elsewhere (or promised by our own plans), without a counterpart today."""


def complaint(argv: Sequence[str], options: Mapping[str, bool]) -> str | None:
    """One line about the first flag that does not exist here, None if all do.

    `options` are the existing flags, each with whether it takes a value; `argv` is what follows the verb.
    """
    words = iter(argv)
    for word in words:
        if word == "--":
            return None
        if not word.startswith("-") or word == "-" or re.fullmatch(r"-\d+(\.\d+)?", word):
            continue
        flag, has_value, _ = word.partition("=")
        if flag not in options:
            return _advice(flag.replace("_", "-") if flag.startswith("--") else flag, options)
        if options[flag] and not has_value:
            next(words, None)
    return None


def _advice(flag: str, options: Iterable[str]) -> str:
    names = sorted(options)
    if flag in names:
        return f"unknown flag {flag.replace('-', '_').replace('__', '--', 1)}: use {flag}"
    if instead := ELSEWHERE.get(flag):
        return f"unknown flag {flag}: use {instead}"
    if flag in ALWAYS_ON:
        return f"unknown flag {flag}: {ALWAYS_ON[flag]}"
    if flag in NOT_YET:
        return f"{flag} is not supported yet"
    # Without the dashes, which all have in common.
    near = difflib.get_close_matches(flag.lstrip("-"), [name.lstrip("-") for name in names], n=1, cutoff=0.7)
    advice = f"; did you mean --{near[0]}?" if near else "; see cohort serve --help"
    return f"unknown flag {flag}{advice}"
