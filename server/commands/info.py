"""`cohort info`: what a model takes, without loading it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

from server.commands.common import as_bytes, console, count, fail, print_json, size
from server.commands.find_model import find_model
from server.commands.options import AsJson, ModelArgument, Text, flag, with_settings

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from executors.contract import ModelInfo

REFUSED = "cannot be served"
"""Label of the reason why `cohort serve` would not start."""
_MOST_LABELS = 5
"""Names of labels that a line shows."""


@with_settings(
    (
        "revision", "download_dir", "dtype", "quantization", "device", "max_model_len", "max_num_seqs",
        "max_num_batched_tokens", "block_size", "kv_cache_memory_bytes", "kv_cache_dtype", "gpu_memory_utilization",
        "tensor_parallel_size", "pipeline_parallel_size", "config",
    ),
    short={"quantization": "-q", "tensor_parallel_size": "-tp", "pipeline_parallel_size": "-pp"},
)  # fmt: skip
def info(
    model: ModelArgument = None,
    memory: Annotated[
        Text,
        flag(
            "Memory limit of the whole server, such as 16GiB [the memory of this machine].",
            "--memory",
            metavar="BYTES",
        ),
    ] = None,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Show the memory that a model needs.

    Reports the size of the model and of its KV cache, and the number of sequences that fit into memory, without loading
    weights. Flags, environment and file have the same meaning as for `cohort serve`. For a model that `cohort serve` would
    refuse it gives the same reason, and exit code 2.
    """
    memory_bytes = as_bytes(memory, "--memory")
    if memory_bytes is not None and flags["kv_cache_memory_bytes"] is not None:
        fail("--memory is for weights, KV and all, --kv-cache-memory-bytes for KV alone: give one of them")
    settings, name, directory = find_model({"model": model, **flags}, weights=False)
    facts = _facts(settings, name, directory, memory_bytes)
    if as_json:
        print_json(facts)
    else:
        _show(facts)
    if facts["refused"] is not None:
        sys.stdout.flush()
        fail(_refusal(name, facts["refused"]))


def _refusal(name: str, sentence: str) -> str:
    return f"{sentence} ({name} {REFUSED})"


def _facts(settings: Any, name: str, directory: Path, memory: int | None) -> dict[str, Any]:
    from dataclasses import asdict

    from executors.contract import ModelInfo
    from server.commands.common import busy
    from server.lora.own import shown_name
    from server.model_files.ollama_package import read_package
    from server.model_files.prepared import model_file
    from server.startup.core_configs import executor_config
    from server.startup.model_loader import model_source
    from server.startup.model_source import LocalModel
    from server.system.executor_tool import ToolError, ToolRefusal, ask

    executor = executor_config(settings, directory)
    package = read_package(directory)
    adapter = None
    if package is not None and package.adapter is not None:
        adapter = {"path": str(package.adapter), "shown": shown_name(package)}
    try:
        job = {"config": asdict(executor), "memory": memory, "adapter": adapter}
        with busy("asking the executor"):
            facts: dict[str, Any] = ask("describe", job)
    except ToolRefusal as error:
        fail(_refusal(name, str(error)))
    except ToolError as error:
        fail(str(error))
    file = model_file(directory)
    facts["name"] = name if settings.model is None else settings.model
    where = {
        "directory": str(directory),
        "file": None if file is None else str(file),
        "adapter": None if adapter is None else adapter["path"],
    }
    stored, served = facts["checkpoint"], ModelInfo(**facts.pop("info"))
    # What a download would bring is no fault of the model.
    refused = (
        stored["problem"]
        if stored["fetched"] or settings.model is None or isinstance(model_source(settings), LocalModel)
        else None
    )
    refusal, notes = text_outcome(settings, name, directory, served)
    text = text_facts(directory)
    text["notes"] = notes or text["notes"]
    return {**facts, **where, "text": text, "refused": refused or refusal}


def text_outcome(
    settings: Any, name: str, directory: Path, served: ModelInfo
) -> tuple[str | None, list[str]]:
    """The error with which a server would refuse the tokenizer, the chat template, the sampling defaults or the pooling, None if
    it would serve them; and what it would note on them."""
    from executors.contract import ConfigError
    from server.model_defaults.pooling import length_notes
    from server.model_files import default_model
    from server.startup.text_side import read_text_side, retrieval_side

    try:
        text = read_text_side(settings, directory, name == default_model.NAME)
        retrieval_side(settings, text.tokenizer, served, directory, (name,))
        lengths = length_notes(directory, served)
    except ConfigError as error:
        return str(error), []
    return None, [*text.warnings, *lengths]


def text_facts(directory: Path) -> dict[str, Any]:
    """Tokenizer and chat template: whether they are there, and what they know. `problem`: why not; `notes`: what in the files is
    not used."""
    from engine.text.tokenizer import Tokenizer, has_tokenizer
    from executors.contract import ConfigError
    from server.templates.template import ChatTemplate

    facts: dict[str, Any] = {
        "tokens": None,
        "chat_template": False,
        "tools": False,
        "problem": None,
        "notes": [],
    }
    if not has_tokenizer(directory):
        return {**facts, "problem": "there is no tokenizer.json"}
    try:
        tokenizer = Tokenizer.load(directory)
        facts |= {"tokens": tokenizer.vocab_size, "notes": list(tokenizer.warnings)}
        if tokenizer.chat_template is not None:
            template = ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens)
            facts |= {"chat_template": True, "tools": template.shows_tools}
    except ConfigError as error:
        facts["problem"] = str(error)
    return facts


def _show(facts: dict[str, Any]) -> None:
    from rich.table import Table

    screen = console()
    screen.print()
    screen.print(facts["name"], style="bold")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in (*_model_lines(facts), *_kv_lines(facts), *_memory_lines(facts)):
        table.add_row(name, value)
    screen.print(table)
    memory = facts["memory"]
    if memory["problem"] is None and facts["kv"] is not None:
        screen.print()
        screen.print(f"Sequences in the KV cache of {size(memory['pool_bytes'])}", style="bold")
        screen.print(_sequences(facts))
        if any(row["fit"] > row["at_once"] for row in memory["sequences"]):
            screen.print(
                f"At once: at most --max-num-seqs {facts['max_num_seqs']} are computed; more wait.",
                style="dim",
            )
        if memory["full_sequences_in_memory"] > facts["max_num_seqs"]:
            where = f"{size(memory['given'])} of memory" if memory["given"] else "This machine"
            screen.print(
                f"{where} leaves {size(memory['kv_bytes'])} for KV, enough for {memory['full_sequences_in_memory']:,} "
                f"sequences of {memory['max_model_len']:,} tokens: a higher --max-num-seqs makes the cache larger.",
                style="dim",
            )
    screen.print()


def _model_lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    stored, text = facts["checkpoint"], facts["text"]
    experts = facts["experts"]
    heads = f"{facts['heads']} heads, {facts['kv_heads']} KV heads of {facts['head_dim']}"
    for one in facts["other_heads"]:
        heads += f", {one['kv_heads']} of {one['head_dim']} in {one['layers']} layers"
    of_experts = f", {experts[1]} of {experts[0]} experts a token" if experts else ""
    weights = (
        f"{size(stored['bytes'])} in {'several formats' if len(stored['formats']) > 1 else stored['dtype']}"
    )
    if facts["dtype"] != stored["dtype"]:
        weights += f", {size(facts['weight_bytes'])} in {facts['dtype']}"
    if facts["quantization"] in ("int8", "int4"):
        weights += f"; {size(facts['loaded_bytes'])} once loaded in {facts['quantization']}"
    elif facts["loaded_bytes"] > facts["weight_bytes"]:
        weights += f"; {size(facts['loaded_bytes'])} once loaded"
    formats = ""
    if len(stored["formats"]) > 1:
        total = sum(stored["formats"].values())
        formats = ", ".join(f"{name} {_percent(part / total)}" for name, part in stored["formats"].items())
    context = f"{facts['context_length']:,} tokens"
    if facts["max_context_length"] != facts["context_length"]:
        context += f", at most {facts['max_context_length']:,} with --max-model-len"
    template = "no"
    if text["chat_template"]:
        template = "yes, with tools" if text["tools"] else "yes, without tools"
    lines = [
        ("family", f"{facts['family']} ({facts['architecture']})"),
        ("", "text only: the checkpoint's other parts are left out" if facts["text_only"] else ""),
        ("", _without_head(facts)),
        *(("note", warning) for warning in facts["warnings"]),
        ("parameters", f"{count(facts['parameters'])} ({facts['parameters']:,})"),
        ("layers", f"{facts['layers']} of width {facts['hidden_size']:,}; {heads}{of_experts}"),
        ("vectors", _vectors(facts)),
        ("file", facts.get("file") or ""),
        ("adapter", facts.get("adapter") or ""),
        ("weights", weights),
        ("formats", formats),
        (REFUSED, facts.get("refused") or ""),
        ("", f"not here: {stored['problem']}" if stored["problem"] and not facts.get("refused") else ""),
        ("context", context),
        ("vocabulary", f"{facts['vocab_size']:,} ids" + (f", {text['tokens']:,} in the tokenizer" if text["tokens"] else "")),
        ("chat template", template),
        ("tokenizer", f"none: {text['problem']}" if text["problem"] else ""),
        *(("note", note) for note in text.get("notes", ())),
    ]  # fmt: skip
    return [line for line in lines if line[1]]


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else "<1%"


def _without_head(facts: dict[str, Any]) -> str:
    """What a model without lm_head serves; empty for one that generates."""
    if facts["generates"]:
        return ""
    if names := facts.get("label_names"):
        listed = ", ".join(names[:_MOST_LABELS]) + (", ..." if len(names) > _MOST_LABELS else "")
        if len(names) == 1:
            return "scores only: an encoder with a classification head of one label"
        return f"embeddings only: an encoder; its classification head has {len(names)} labels ({listed}), which make no score"
    if facts["labels"]:
        return "scores only: a classification head in place of lm_head"
    return (
        "embeddings only: an encoder"
        if facts["kv"] is None
        else "embeddings only: the checkpoint has no lm_head"
    )


def _vectors(facts: dict[str, Any]) -> str:
    """The layers behind the pooling of an embedding model; empty without any."""
    widths = facts.get("vector_layers") or ()
    layers = " and ".join(f"a linear layer of width {width:,}" for width in widths)
    return f"{layers} behind the pooling" if layers else ""


def _kv_lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    kv = facts["kv"]
    if kv is None:
        return [("KV", "none: texts are computed whole, and nothing of them is kept")]
    each = size(kv["bytes_per_token_per_layer"])
    lines = [("KV per token", f"{size(kv['bytes_per_token'])} in {kv['dtype']} ({each} a layer)")]
    lines += [
        ("window", f"{one['tokens']:,} tokens in {one['layers']} of {kv['layers']} layers, whose KV is kept whole")
        for one in kv["windows"]
    ]  # fmt: skip
    if shared := facts["layers_that_share_kv"]:
        lines.append(("shared KV", f"{shared} of {facts['layers']} layers read the KV of others"))
    if states := facts["states"]:
        each = f"{size(states['bytes_per_sequence'])} in {states['dtype']}, however long it is"
        lines.append(
            (
                "state per sequence",
                f"{each}: in {states['layers']} of {facts['layers']} layers in place of KV",
            )
        )
    return lines


def _memory_lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    memory = facts["memory"]
    if memory["problem"] is not None:
        where = f"in {size(memory['given'])}" if memory["given"] else "on this machine"
        return [("device", facts["device"]), ("does not fit", f"{where}: {memory['problem']}")]
    if facts["kv"] is None:
        return [("device", facts["device"])]
    blocks = f"{memory['num_blocks']:,} blocks of {memory['block_size']}"
    for group in memory["groups"]:
        if group["window"] is not None:
            blocks += f", {group['num_blocks']:,} for windows of {group['window']:,}"
    lines = [
        ("device", facts["device"]),
        *([("steps", facts["limits"].removeprefix("steps: "))] if facts.get("limits") else []),
        *_rank_lines(facts),
        ("KV cache", f"{memory['capacity_tokens']:,} tokens ({blocks})"),
        *_slot_lines(facts),
    ]
    return lines + ([("note", memory["note"])] if memory["note"] else [])


def _slot_lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Room for states, of a model whose layers have some."""
    slots = facts["memory"]["states"]
    if slots is None:
        return []
    return [
        (
            "states",
            f"{size(slots['bytes'])} for {facts['max_num_seqs']:,} sequences and {slots['snapshots']:,} snapshots",
        ),
        (
            "",
            f"a prompt reuses another one's beginning up to a snapshot, at a multiple of {slots['interval']} tokens",
        ),
    ]


def _rank_lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Each rank's part, in ranges."""
    ranks = facts["ranks"]
    if not ranks:
        return []

    def span(name: str) -> str:
        least, most = (size(pick(rank[name] for rank in ranks)) for pick in (min, max))
        return most if least == most else f"{least} to {most}"

    each = f"{span('loaded_bytes')} of weights, {span('kv_bytes_per_token')} of KV a token"
    return [("ranks", f"{len(ranks)} processes, each with {each}")]


def _sequences(facts: dict[str, Any]) -> Table:
    from rich import box
    from rich.table import Table

    memory = facts["memory"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    each = "KV and state each" if facts["states"] else "KV each"
    for name in ("tokens each", each, "fit", "at once"):
        table.add_column(name, justify="right")
    for row in memory["sequences"]:
        table.add_row(f"{row['length']:,}", size(row["kv_bytes"]), f"{row['fit']:,}", f"{row['at_once']:,}")
    return table
