"""The settings of `cohort serve`: one row each, with name, type, default, help text and range.

Everything else that knows settings is made from this table: flags and their help (server/commands/options.py), environment
names and keys of YAML files (load.py), docs/settings.md (tools/settings_docs.py). A field's annotation is the type of the value
for the rest of the server; its right-hand side is the row. The order is that of `--help`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from executors.devices import DEVICES, GPU, MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS, settings_of_device
from server.settings.kinds import (
    Setting,
    aliases,
    byte_size,
    choice,
    integer,
    json_object,
    key,
    keys,
    modules,
    names,
    number,
    pairs,
    row_of,
    switch,
    text,
)
from server.settings.readers import Scalar, read_text

_DEVICES = settings_of_device()
_ON_GPU = DEVICES[GPU].batch_limits or (MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS)
SchedulingPolicy = Literal["fcfs", "priority", "fair"]
ExecutorMode = Literal["process", "inline"]
LogFormat = Literal["pretty", "json"]
LOG_FORMATS: tuple[LogFormat, ...] = get_args(LogFormat)
SCHEDULING_POLICIES: tuple[SchedulingPolicy, ...] = get_args(SchedulingPolicy)
EXECUTOR_MODES: tuple[ExecutorMode, ...] = get_args(ExecutorMode)
StandbyExecutor = Literal["auto", "off", "imports", "device"]
STANDBY_EXECUTORS: tuple[StandbyExecutor, ...] = get_args(StandbyExecutor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that `cohort serve` can be told. None: decided by the model or the machine."""

    model: str | None = text(
        None,
        "Model directory, GGUF file, hub name ORG/NAME or ORG/NAME:Q4_K_M, or a name that `cohort list` shows; the same as the "
        "argument MODEL.",
        metavar="MODEL",
        wording="the best one on this disk that fits; SmolLM2-135M-Instruct where there is none",
        opens="Model and address",
    )
    revision: str | None = text(
        None, "Branch, tag or commit of a model on the hub.", wording="the default branch"
    )
    download_dir: str | None = text(
        None, "Directory for models from the hub.", metavar="DIR", wording="the cache of huggingface_hub"
    )
    host: str = text(
        "127.0.0.1",
        "Address to listen on, or a name, which stands for all its addresses: localhost is 127.0.0.1 and ::1. `::` or `*` is "
        "every address of this machine, 0.0.0.0 every one of IPv4.",
    )
    port: int = integer(8000, "Port to listen on; 0 takes a free one.", low=0, high=65535)
    served_model_name: tuple[str, ...] = names(
        (),
        "Name of the model in the API; may be given several times.",
        wording="the name of the directory or file, or the hub name",
    )
    model_alias: tuple[str, ...] = aliases(
        "Further names of a served model or adapter, as PATTERN=NAME such as 'claude-*=my-model'; may be given several times. "
        "`*` stands for any characters. The first pattern that matches counts, and answers carry the name that was asked for.",
        wording="none",
    )
    models: Mapping[str, Any] = json_object(
        "Several models behind one address, by name: a source, or an object with source, aliases, pin, preload, idle_unload, "
        "memory, settings, sampling, draft, lora and variants. Arguments NAME=SOURCE take its place. Each is loaded at its first "
        "call.",
        wording="one model",
        opens="Several models",
    )
    models_dir: str | None = text(
        None,
        "Serve all models of this folder by their names, or those of a store: ollama or hf.",
        metavar="DIR",
    )
    memory: int | None = byte_size(
        None,
        "Memory that all loaded models may need together.",
        wording="80% of the memory that is free at the start",
    )
    idle_unload: float | None = number(
        None,
        "Seconds without a call after which a model is unloaded.",
        low=0,
        may_be_infinite=True,
        wording="1800 with several models, never with one",
    )
    swap_after: float = number(
        30.0,
        "Seconds that a call waits for a model before others with running streams make room: their streams pause and go on "
        "when their model is back.",
        low=0,
        may_be_infinite=True,
    )
    load_timeout: float = number(
        600.0,
        "Seconds that the load of one of several models may take, its download aside: after that it counts as failed.",
        low=1,
        may_be_infinite=True,
    )
    min_residency: float = number(
        30.0,
        "Seconds for which a model stays loaded at least before its running streams pause for another model; 5 times the "
        "seconds of its load, if that is more.",
        low=0,
    )
    tokenizer: str | None = text(
        None, "Directory of the tokenizer.", wording="the model's", opens="Text and sampling"
    )
    chat_template: str | None = text(
        None,
        "Jinja chat template: a file, the name of one of the model's templates, or the text itself.",
        wording="the model's",
    )
    classifier_from_token: str | None = text(
        None,
        "Tokens whose logits a reranker answers with, that for no and that for yes: no,yes.",
        metavar="NO,YES",
        wording="the model's files, or Qwen3-Reranker's for a model of that name",
    )
    tool_call_parser: str | None = choice(
        None,
        "Format of the model's tool calls, or none to leave tool calls in the text.",
        (
            "hermes", "llama3_json", "mistral", "qwen3_coder", "seed_oss", "minimax_m2", "glm45", "granite", "phi4_mini_json",
            "jamba", "nemotron_json", "deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4", "kimi_k2", "openai",
            "pythonic", "llama4_pythonic", "lfm2", "olmo3", "functiongemma", "gemma4", "none",
        ),
        wording="the format in the chat template; calls in other formats stay text",
    )  # fmt: skip
    generic_tools: bool = switch(
        True,
        "Describe tools in a prompt of the server's own if the chat template shows none; otherwise such requests are refused.",
    )
    reasoning_parser: str | None = choice(
        None,
        "Format of the model's reasoning, or none to leave reasoning in the text.",
        (
            "qwen3", "deepseek_r1", "mistral", "seed_oss", "cohere", "gemma4", "thinking", "thought", "openai_gptoss",
            "deepseek_v3", "glm45", "kimi_k2", "minimax_m2", "olmo3", "none",
        ),
        wording="the format in the chat template",
    )  # fmt: skip
    reasoning_field: str = choice(
        "both",
        "Name of the message field that carries reasoning: reasoning, reasoning_content, or both.",
        ("both", "reasoning", "reasoning_content"),
    )
    unread_parts: str = choice(
        "refuse",
        "Images, audio and documents in messages, which no model here reads: refuse returns 400; placeholder puts "
        "'image not read' or the like in their place, and x-cohort-ignored lists them.",
        ("refuse", "placeholder"),
    )
    generation_config: str = text(
        "auto",
        "Source of sampling defaults: auto (the model), none or vllm (neutral values), or a directory.",
    )
    override_generation_config: Mapping[str, Any] = json_object(
        "Sampling defaults that take precedence over --generation-config, such as '{\"temperature\": 0.5}'.",
        wording="",
    )
    dtype: str = text(
        "auto",
        "Data type of the computation: auto, bfloat16, float16 or float32.",
        may_be_empty=True,
        opens="Device and memory",
    )
    device: str = text("auto", f"Device: {', '.join(_DEVICES[:-1])} or {_DEVICES[-1]}.", may_be_empty=True)
    max_model_len: int | None = integer(None, "Context length in tokens.", low=1, wording="the model's")
    max_num_seqs: int | None = integer(
        None,
        "Maximum number of sequences in a step.",
        low=1,
        wording=f"{MAX_NUM_SEQS}, or fewer if memory is short; on a GPU {_ON_GPU[0]}",
    )
    max_num_batched_tokens: int | None = integer(
        None,
        "Maximum number of tokens in a step.",
        low=1,
        wording=f"{MAX_NUM_BATCHED_TOKENS}; on a CPU 512 per thread, at most {MAX_NUM_BATCHED_TOKENS}; on a GPU {_ON_GPU[1]}",
    )
    block_size: int = integer(16, "Number of tokens in a KV block.", low=1, high=1024)
    kv_cache_memory_bytes: int | None = byte_size(
        None,
        "Memory for the KV cache, such as 4GiB. On a CPU, a given size is allocated at the start; without one, the cache grows "
        "with its use.",
        wording="the free memory",
    )
    kv_cache_dtype: str = text(
        "auto",
        "Data type of keys and values: auto (the model's dtype), int8 (a scale per head and token) or fp8 (e4m3). With "
        "int8 or fp8, nearly twice as many tokens fit into memory as with bfloat16.",
    )
    gpu_memory_utilization: float = number(
        0.9,
        "Fraction of a GPU's memory that the server may use, weights and KV cache included. If --kv-cache-memory-bytes is "
        "given, only that flag sets the size of the KV cache.",
        above=0,
        high=1,
    )
    max_queued_seqs: int = integer(
        4096,
        "Maximum number of waiting sequences. Further requests are refused with 429 and a Retry-After header.",
        low=1,
        opens="Queue and steps",
    )
    max_queued_tokens: int = integer(
        1 << 22,
        "Maximum number of waiting prompt tokens. Further requests are refused with 429 and a Retry-After header.",
        low=1,
    )
    max_queue_wait: float = number(
        60.0,
        "Seconds that a request may wait for its first step. Requests with a longer estimated or actual wait are refused "
        "with 429.",
        above=0,
    )
    scheduling_policy: SchedulingPolicy | None = choice(  # noqa: RUF009 - a row is made once
        None,
        "Order of waiting requests: fcfs (first come, first served), priority (lowest `priority` first) or fair (first the "
        "API key that was served least).",
        SCHEDULING_POLICIES,
        wording="fcfs; fair with several API keys or a file of them",
    )
    target_itl_ms: float | None = number(
        None,
        "Milliseconds that a step may take while streams run; prompts are computed in chunks that fit. 0 computes prompts as "
        "fast as possible and delays the streams.",
        low=0,
        high=60_000,
        wording="1.75 times a step without prompts",
    )
    enable_prefix_caching: bool = switch(
        True, "Reuse the KV cache of earlier requests whose prompts have the same beginning."
    )
    kv_cache_dir: str | None = text(
        None,
        "Directory in which the KV cache of prompts outlives the server: it is written when a request has ended, and read where "
        "that is faster than computing. Several servers may use one directory. On CPUs.",
        metavar="DIR",
        wording="prompts are computed again after a restart",
    )
    kv_disk: int = byte_size(
        20 << 30, "Size of the files in --kv-cache-dir; the least recently used ones leave."
    )
    kv_disk_write: int = byte_size(
        50_000_000, "Maximum number of bytes that are written to --kv-cache-dir in a second."
    )
    cache_salt_per_key: bool = switch(
        False,
        "Share the KV cache of a common prefix only between requests with the same API key, so that response times do not reveal "
        "the prompts of other clients.",
    )
    attention_backend: str = text(
        "auto",
        "Implementation of attention: flash-attn (the library, extra [flash]), triton, varlen (torch's own, from 2.12) or torch.",
        wording="{}: on a GPU the first of these that works, on a CPU Cohort's own kernel",
        opens="Computation",
    )
    enforce_eager: bool = switch(
        False, "Do not capture CUDA graphs: the server starts sooner, but steps are slower."
    )
    deterministic: bool = switch(
        False,
        "Compute the same tokens, bit for bit, whatever else is in the batch and however often a request is recomputed; on CPUs. "
        "Without it bits change with the batch, so that a seed repeats an answer only if the same requests run beside it.",
    )
    quantization: str | None = text(
        None,
        "Quantize weights at load: int8 (a scale per 32 values; half the memory and about 1.5 times the speed on a CPU), int4 "
        "(a scale and a minimum per 32 values, the head in int8; on CPUs) or fp8 (e4m3, on GPUs with FP8 arithmetic). "
        "Activations have 8 bits.",
        wording="none, or the checkpoint's",
    )
    cpu_isa: str | None = text(
        None,
        "Instruction set of the CPU kernels: avx512_bf16, avx512_vnni, avx512 or avx2.",
        wording="the best that this CPU has",
    )
    tensor_parallel_size: int = integer(
        1,
        "Number of executor processes, each with a GPU or a share of the CPUs, that share every layer of the model.",
        low=1,
        high=64,
    )
    pipeline_parallel_size: int = integer(
        1,
        "Number of stages that the layers are divided into. With --tensor-parallel-size, each stage has as many processes.",
        low=1,
        high=64,
    )
    max_in_flight: int | None = integer(
        None,
        "Maximum number of steps in flight, submitted but not finished; with 1, each step waits for the one before.",
        low=1,
        wording="1 on a CPU, else 2, or 3 while decode steps take less than 1.5 ms",
    )
    # Each proposed token is computed, and most of a long guess is wrong: hence the limit.
    num_speculative_tokens: int = integer(
        0,
        "Maximum number of draft tokens per sequence and step. The server looks them up in the sequence itself, or asks the "
        "model of --speculative-config, or the model's MTP head. 0: no drafts. Left out: 2 of an MTP head that the model has and "
        "that can be used, else none.",
        low=0,
        high=32,
    )
    speculative_config: Mapping[str, Any] = json_object(
        "How tokens are proposed, as a JSON object: method (ngram, draft_model or mtp), num_speculative_tokens, for ngram "
        "prompt_lookup_min and prompt_lookup_max, for draft_model the model, a smaller one with the same vocabulary; mtp is the "
        "MTP head of the model's own checkpoint.",
        wording="none",
    )
    enable_lora: bool = switch(
        False,
        "Serve LoRA adapters. --lora-modules and --lora-root turn it on, too.",
        opens="Adapters",
    )
    lora_modules: tuple[str, ...] = modules(
        "Adapter to load at the start, as NAME=PATH or as a JSON object with name and path; may be given several times. The path "
        "is a folder in PEFT's format, a GGUF file or a hub name.",
        wording="none",
    )
    max_loras: int = integer(
        8, "Number of different adapters that a step may have, and that stay in memory.", low=1, high=256
    )
    max_lora_rank: int = integer(64, "Highest rank that an adapter may have.", low=1, high=256)
    lora_root: str | None = text(
        None,
        "Directory below which adapters may be loaded over HTTP, with the admin key.",
        metavar="DIR",
    )
    lora_on_demand: bool = switch(
        False, "Also load an adapter below --lora-root when a request names its folder as the model."
    )
    load_format: str = text(
        "auto", "Format of the weights: auto, safetensors, or dummy for random weights.", may_be_empty=True
    )
    seed: int = integer(0, "Seed of random weights.", low=0, below=2**63)
    api_key: tuple[str, ...] = keys(
        "API key that clients must send; may be given several times.", wording="none", opens="Access"
    )
    api_key_file: str | None = text(
        None,
        "File of further API keys, one per line: KEY or NAME KEY. It is read again when it changes; logs and metrics name "
        "clients by these names.",
        metavar="FILE",
    )
    metrics_key: str | None = key(None, "Key that /metrics requires.")
    admin_key: str | None = key(
        None,
        "Key for paths that change the server or show what it does: adapters, /v1/settings, /v1/requests, the kill button and, "
        "with API keys, /v1/steps.",
        wording="a new one at each start if stderr is a terminal, which shows it; otherwise these paths are 404",
    )
    admin_key_file: str | None = text(
        None, "File of further admin keys, in the form of --api-key-file.", metavar="FILE"
    )
    enable_kill_button: bool = switch(
        False,
        "Offer POST /v1/kill_executor, which kills the executor and requires the admin key, and its button in the console: "
        "for demonstrations.",
    )
    allowed_origins: tuple[str, ...] = names(
        (),
        "Web origin whose pages may call this server from a browser, or '*'; may be given several times.",
        wording="none",
        commas_in_items=True,
        json_lists=True,
    )
    allowed_methods: tuple[str, ...] = names(
        ("*",),
        "Method that pages of these origins may use; may be given several times.",
        wording="all",
        commas_in_items=True,
        json_lists=True,
    )
    allowed_headers: tuple[str, ...] = names(
        ("*",),
        "Header that pages of these origins may send; may be given several times.",
        wording="all",
        commas_in_items=True,
        json_lists=True,
    )
    allow_credentials: bool = switch(False, "Let pages of these origins send cookies.")
    allowed_hosts: tuple[str, ...] = names(
        (),
        "Name that requests may have in their Host header, *.NAME for all names below it, or '*'; may be given several times.",
        wording="any; on a loopback address without --api-key: the names of the loopback and --host",
        commas_in_items=True,
    )
    ssl_keyfile: str | None = text(
        None, "Private key of the certificate, PEM.", wording="in the file of the certificate"
    )
    ssl_certfile: str | None = text(
        None, "Certificate and chain, PEM. With it the server speaks HTTPS.", wording="none: HTTP"
    )
    ssl_ca_certs: str | None = text(
        None, "Certificate authorities for checking the certificates of clients, PEM."
    )
    ssl_cert_reqs: int = integer(
        0,
        "Certificates of clients: 0 requests none, 1 checks a certificate that is sent, 2 requires one.",
        low=0,
        high=2,
    )
    executor: str = text(
        "llm",
        "Executor: llm, qwen3, echo, paged_fake, or package.module:Factory.",
        may_be_empty=True,
        opens="Executor and operation",
    )
    executor_mode: ExecutorMode = choice(  # noqa: RUF009 - a row is made once
        "process",
        "Place of the executor: process (a process of its own) or inline (a thread of the server, for debugging: it cannot go on "
        "after a GPU has failed).",
        EXECUTOR_MODES,
    )
    standby_executor: StandbyExecutor = choice(  # noqa: RUF009 - a row is made once
        "auto",
        "What stands by for the next executor after a death: imports (a process for each rank that has imported torch and more; "
        "some 160 MB of its own memory), device (one that has also opened its GPU, where it takes 512 MiB that KV does not "
        "get) or off. Where executors are forked with their weights, as on CPUs, nothing does; where they are forked with their "
        "imports, device alone does.",
        STANDBY_EXECUTORS,
        wording="{}: imports where executors cannot be forked, else nothing",
    )
    executor_option: Mapping[str, Scalar] = pairs(
        "Option of the executor; may be given several times.", wording=""
    )
    api_server_count: int = integer(
        0,
        "Number of processes that speak HTTP, render templates, tokenize and write answers, beside the one that schedules. 0: "
        "one process does both.",
        low=0,
        high=64,
    )
    recovery_timeout: float = number(
        120.0,
        "Seconds that a recovery of the executor may take. If it takes longer, /health reports the failure and the server ends "
        "with exit code 3.",
        above=0,
        may_be_infinite=True,
    )
    drain_timeout: float = number(
        30.0,
        "Seconds that running requests have to finish after SIGTERM, SIGINT or SIGHUP.",
        low=0,
        may_be_infinite=True,
    )
    write_timeout: float = number(
        60.0,
        "Seconds after which the server disconnects a client that reads nothing of its answer.",
        above=0,
        high=86_400,
    )
    max_body_bytes: int = byte_size(16 * 2**20, "Maximum size of a request body.")
    responses_store_entries: int = integer(
        1000,
        "Number of responses of /v1/responses that are kept in memory, to be retrieved and continued; the oldest go first. 0 "
        "keeps none.",
        low=0,
    )
    responses_store_bytes: int = byte_size(
        256 * 2**20, "Size of these responses, those in progress included."
    )
    responses_store_age: float = number(
        86_400.0,
        "Seconds for which a response is kept after its end.",
        above=0,
        may_be_infinite=True,
    )
    metrics_compat: str = choice(
        "none",
        "Further names of metrics in /metrics: vllm adds those that vLLM's dashboards and the Kubernetes inference gateway read.",
        ("none", "vllm"),
    )
    log_level: str = choice(
        "info",
        "Log level: debug, info, warning or error.",
        ("debug", "info", "warning", "error"),
        opens="Logs and stories",
    )
    log_format: LogFormat = choice(  # noqa: RUF009 - a row is made once
        "pretty",
        "Form of log lines: pretty (text for people) or json (an object a line).",
        LOG_FORMATS,
    )
    log_prompts: bool = switch(
        False, "Write the first 1,024 tokens of each prompt of a generation to the access log."
    )
    stories: int = integer(
        1000,
        "Number of ended calls whose stories GET /v1/requests tells; the oldest go first. 0 keeps none.",
        low=0,
        high=100_000,
    )
    otlp_traces_endpoint: str | None = text(
        None,
        "URL to which traces of requests are sent by OTLP over HTTP, such as http://localhost:4318/v1/traces. Needs the extra "
        "`otel` of the package.",
        metavar="URL",
        wording="none: no traces",
    )
    explicit: frozenset[str] = frozenset()
    """Names of the settings that flags, environment or file have set. Not a setting itself."""

    @property
    def needs_key(self) -> bool:
        """True if clients have to send an API key."""
        return bool(self.api_key or self.api_key_file)

    @property
    def policy(self) -> SchedulingPolicy:
        """The order of waiting requests: with several clients that can be told apart, each gets its turn."""
        several = len(self.api_key) > 1 or self.api_key_file is not None
        return self.scheduling_policy or ("fair" if several else "fcfs")


TABLE: Mapping[str, Setting] = {
    row.name: row for field in fields(Settings) if (row := row_of(field)) is not None
}
"""The rows by name, in the order of `--help`."""
DEFAULTS = Settings()
"""The settings of a server that was told nothing."""
CONFIG = Setting(
    name="config", kind="string", read=read_text, default=None, wording="",
    help="YAML file of settings, or a preset: default, cpu, gpu.", metavar="FILE",
)  # fmt: skip
"""Names the file: a flag and a variable, and no key of the file."""
