"""The verbs of the `cohort` command. Light: what serving needs is imported when a server is really started."""

from __future__ import annotations

import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.exceptions import TyperException

from server import __version__
from server.commands.bench.command import BenchCommand, bench
from server.commands.chat.command import chat
from server.commands.common import fail, lost_output
from server.commands.demo.command import demo
from server.commands.doctor import doctor
from server.commands.info import info
from server.commands.list.command import list_models
from server.commands.options import (
    BlockSize,
    ConfigFile,
    Device,
    DownloadDir,
    Dtype,
    GpuMemoryUtilization,
    KvCacheDtype,
    KvCacheMemory,
    MaxModelLen,
    MaxNumBatchedTokens,
    MaxNumSeqs,
    ModelArgument,
    Number,
    Revision,
    Text,
    flag,
)
from server.commands.verify.command import verify
from server.settings.foreign_flags import complaint

app = typer.Typer(
    name="cohort",
    help="Serve language models with an OpenAI-compatible API. `cohort serve` alone serves the embedded demo model.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Seconds = float | None


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"cohort {__version__}")
        raise typer.Exit


@app.callback()
def _cohort(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def version() -> None:
    """Print the version."""
    _version(True)


@app.command(
    help="Start the server. Every flag is also a key of a YAML file (--config) and an environment variable: "
    "--max-num-seqs, max_num_seqs, COHORT_MAX_NUM_SEQS. Flags win over the environment, which wins over the file.",
)
def serve(
    model_dir: ModelArgument = None,
    model: Annotated[Text, flag("The same as MODEL.", "--model", metavar="MODEL")] = None,
    revision: Revision = None,
    download_dir: DownloadDir = None,
    host: Annotated[Text, flag("Address to listen on [127.0.0.1].", "--host")] = None,
    port: Annotated[Number, flag("Port to listen on; 0 takes a free one [8000].", "--port")] = None,
    served_model_name: Annotated[
        list[str] | None,
        flag("Name to serve the model under; may be given several times.", "--served-model-name"),
    ] = None,
    tokenizer: Annotated[Text, flag("Directory of the tokenizer [the model's].", "--tokenizer")] = None,
    chat_template: Annotated[
        Text,
        flag(
            "Jinja chat template: a file, a named one of the model, or the text itself [the model's].",
            "--chat-template",
        ),
    ] = None,
    tool_call_parser: Annotated[
        Text,
        flag(
            "How the model writes tool calls: hermes, llama3_json, mistral, or none to leave them in the text "
            "[what the chat template shows; calls in other formats stay text].",
            "--tool-call-parser",
        ),
    ] = None,
    reasoning_parser: Annotated[
        Text,
        flag(
            "How the model marks reasoning: qwen3, deepseek_r1, mistral, or none to leave it in the text "
            "[what the chat template shows].",
            "--reasoning-parser",
        ),
    ] = None,
    reasoning_field: Annotated[
        Text,
        flag(
            "What messages call reasoning: reasoning, reasoning_content, or both [both].", "--reasoning-field"
        ),
    ] = None,
    generation_config: Annotated[
        Text,
        flag(
            "Where sampling defaults come from: auto (the model), none or vllm (neutral ones), or a directory [auto].",
            "--generation-config",
        ),
    ] = None,
    override_generation_config: Annotated[
        Text,
        flag(
            "Sampling defaults that win over those, such as '{\"temperature\": 0.5}'.",
            "--override-generation-config",
            metavar="JSON",
        ),
    ] = None,
    dtype: Dtype = None,
    device: Device = None,
    max_model_len: MaxModelLen = None,
    max_num_seqs: MaxNumSeqs = None,
    max_num_batched_tokens: MaxNumBatchedTokens = None,
    block_size: BlockSize = None,
    kv_cache_memory_bytes: KvCacheMemory = None,
    kv_cache_dtype: KvCacheDtype = None,
    gpu_memory_utilization: GpuMemoryUtilization = None,
    max_queued_seqs: Annotated[
        Number,
        flag(
            "Sequences that may wait; more are refused with 429 and a Retry-After [4096].",
            "--max-queued-seqs",
        ),
    ] = None,
    max_queued_tokens: Annotated[
        Number, flag("Tokens of prompts that may wait, likewise [4194304].", "--max-queued-tokens")
    ] = None,
    max_queue_wait: Annotated[
        Seconds,
        flag(
            "Seconds that a request may wait to be begun; one that would wait longer, or has, gets a 429 [60].",
            "--max-queue-wait",
        ),
    ] = None,
    scheduling_policy: Annotated[
        Text,
        flag(
            "Who is admitted first: fcfs; priority, by the `priority` of requests, lower first; or fair, the API key that was "
            "served least [fair with several API keys, else fcfs].",
            "--scheduling-policy",
        ),
    ] = None,
    target_itl_ms: Annotated[
        float | None,
        flag(
            "Milliseconds a step may take while streams run; prompts are computed in chunks that fit. 0: prompts as fast "
            "as possible, whatever the streams bear [1.75 times a step without prompts].",
            "--target-itl-ms",
        ),
    ] = None,
    enable_prefix_caching: Annotated[
        bool | None,
        flag(
            "Find KV of earlier requests by the prefix of a prompt [on].",
            "--enable-prefix-caching/--no-enable-prefix-caching",
        ),
    ] = None,
    cache_salt_per_key: Annotated[
        bool | None,
        flag(
            "Share KV of a common prefix only between requests with the same API key, so that times tell no tenant what "
            "another has asked [off].",
            "--cache-salt-per-key/--no-cache-salt-per-key",
        ),
    ] = None,
    attention_backend: Annotated[
        Text,
        flag(
            "What computes attention: flash-attn (the library, extra [flash]), triton, varlen (torch's own, from 2.12) or torch "
            "[the first of these that a GPU has; on a CPU Cohort's kernel].",
            "--attention-backend",
        ),
    ] = None,
    enforce_eager: Annotated[
        bool | None,
        flag(
            "Capture no CUDA graphs: steps are launched kernel by kernel, which is slower, and starts sooner [off].",
            "--enforce-eager/--no-enforce-eager",
        ),
    ] = None,
    deterministic: Annotated[
        bool | None,
        flag(
            "The same tokens bit for bit, whatever else is in the batch and however often a request is computed anew [off].",
            "--deterministic/--no-deterministic",
        ),
    ] = None,
    quantization: Annotated[
        str | None,
        flag(
            "int8: weights and activations in 8 bits with a scale per 32 values; half the memory and about 1.5 "
            "times the speed on a CPU. fp8: e4m3 in their place, on a GPU that multiplies it [none, or as the checkpoint is].",
            "--quantization",
        ),
    ] = None,
    cpu_isa: Annotated[
        str | None,
        flag(
            "Instruction set of the CPU kernels: avx512_bf16, avx512_vnni, avx512 or avx2 [the best that this CPU has].",
            "--cpu-isa",
        ),
    ] = None,
    max_in_flight: Annotated[
        Number,
        flag(
            "Steps submitted before the first of them has answered; 1 waits for each [1 on a CPU, else 2].",
            "--max-in-flight",
        ),
    ] = None,
    num_speculative_tokens: Annotated[
        Number,
        flag(
            "Tokens guessed and verified per step, from what followed the same words before; 0 guesses none [0].",
            "--num-speculative-tokens",
        ),
    ] = None,
    load_format: Annotated[
        Text, flag("auto, safetensors, or dummy for random weights [auto].", "--load-format")
    ] = None,
    seed: Annotated[Number, flag("Seed of random weights [0].", "--seed")] = None,
    api_key: Annotated[
        list[str] | None, flag("Key that clients must send; may be given several times.", "--api-key")
    ] = None,
    metrics_key: Annotated[Text, flag("Key that /metrics asks for [none].", "--metrics-key")] = None,
    allowed_origins: Annotated[
        list[str] | None,
        flag(
            "Origin whose pages may call this server from a browser, or '*'; may be given several times [none].",
            "--allowed-origins",
        ),
    ] = None,
    allowed_methods: Annotated[
        list[str] | None, flag("Method that such pages may use; several times [all].", "--allowed-methods")
    ] = None,
    allowed_headers: Annotated[
        list[str] | None, flag("Header that such pages may send; several times [all].", "--allowed-headers")
    ] = None,
    allow_credentials: Annotated[
        bool | None,
        flag("Such pages may send cookies [off].", "--allow-credentials/--no-allow-credentials"),
    ] = None,
    allowed_hosts: Annotated[
        list[str] | None,
        flag(
            "Name that requests may call this server by in their Host header, *.NAME for all below it, or '*'; may be given "
            "several times [any; on a loopback address without --api-key: the loopback's and --host].",
            "--allowed-hosts",
        ),
    ] = None,
    ssl_keyfile: Annotated[
        Text, flag("Private key of the certificate, PEM [in the certificate's file].", "--ssl-keyfile")
    ] = None,
    ssl_certfile: Annotated[
        Text, flag("Certificate and chain, PEM: serve HTTPS [none: HTTP].", "--ssl-certfile")
    ] = None,
    ssl_ca_certs: Annotated[
        Text, flag("Authorities that clients' certificates are checked against, PEM.", "--ssl-ca-certs")
    ] = None,
    ssl_cert_reqs: Annotated[
        Number,
        flag(
            "Certificates of clients: 0 not asked for, 1 checked if sent, 2 demanded [0].", "--ssl-cert-reqs"
        ),
    ] = None,
    executor: Annotated[
        Text, flag("llm, qwen3, echo, paged_fake, or package.module:Factory [llm].", "--executor")
    ] = None,
    executor_mode: Annotated[
        Text,
        flag("process, or inline to run it on a thread of the server [process].", "--executor-mode"),
    ] = None,
    executor_option: Annotated[
        list[str] | None,
        flag(
            "Option of that executor; may be given several times.", "--executor-option", metavar="NAME=VALUE"
        ),
    ] = None,
    recovery_timeout: Annotated[
        Seconds,
        flag(
            "Seconds after which a recovery has failed: /health says so, and the server ends with exit code 3 [120].",
            "--recovery-timeout",
        ),
    ] = None,
    drain_timeout: Annotated[
        Seconds, flag("Seconds that running requests get after SIGTERM [30].", "--drain-timeout")
    ] = None,
    write_timeout: Annotated[
        Seconds,
        flag(
            "Seconds in which a client must have taken something of what is sent to it, or it is gone [60].",
            "--write-timeout",
        ),
    ] = None,
    max_body_bytes: Annotated[
        Text, flag("Largest request body [16MiB].", "--max-body-bytes", metavar="BYTES")
    ] = None,
    log_level: Annotated[Text, flag("debug, info, warning or error [info].", "--log-level")] = None,
    config: ConfigFile = None,
) -> None:
    """Start the server."""
    flags = dict(locals())
    positional = flags.pop("model_dir")
    if positional is not None and model is not None and positional != model:
        fail(f"two models are named: {positional} and --model {model}")
    flags["model"] = model if positional is None else positional

    import os

    from server.http.listener import listen
    from server.settings import settings

    try:
        chosen, notes = settings.load(flags, os.environ)
        listener = listen(chosen.host, chosen.port, chosen.write_timeout)
    except settings.SettingsError as error:
        fail(str(error))

    # The large imports come last: whoever connects by now waits in the socket's queue instead of being refused.
    from server import bootstrap

    sys.exit(bootstrap.run(chosen, listener, notes))


for _verb in (chat, info, verify, doctor, demo):
    app.command()(_verb)
app.command(name="list")(list_models)
app.command(cls=BenchCommand)(bench)


def main() -> None:
    """Run the command line. Unknown flags are answered before Typer sees them: it would only say that there is no such one."""
    command: Any = typer.main.get_command(app)
    argv = sys.argv[1:]
    verb = command.commands.get(argv[0]) if argv else None
    # What other servers call their flags is of no use to the other verbs: Typer answers there.
    if argv[:1] == ["serve"] and (message := complaint(argv[1:], known_options(verb))):
        fail(message)
    if not argv:
        app()  # the help
    try:
        code = command.main(argv, prog_name="cohort", standalone_mode=False)
    except TyperException as error:
        _refuse(error)
    except OSError as error:
        # Of the other verbs, which have told what is wrong with their files, it is stdout's.
        if argv[0] == "serve":
            raise
        lost_output(error)
    try:
        sys.stdout.flush()
    except OSError as error:
        lost_output(error)
    sys.exit(code or 0)


def _refuse(error: TyperException) -> NoReturn:
    """Typer's complaint about a command line, as all others look."""
    context = getattr(error, "ctx", None)
    message = error.format_message().rstrip(".")
    fail(f"{message[:1].lower()}{message[1:]}; see {context.command_path if context else 'cohort'} --help")


def known_options(command: Any) -> dict[str, bool]:
    """Flags of a Typer command, each with whether it takes a value."""
    options = {"--help": False}
    for parameter in command.params:
        names = [*parameter.opts, *parameter.secondary_opts]
        for name in names if parameter.param_type_name == "option" else ():
            options[name] = not getattr(parameter, "is_flag", False)
    return options
