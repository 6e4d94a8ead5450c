"""What a process needs to turn requests into token ids and back: tokenizer, chat template, notation, sampling defaults.

The server reads it at its start, and so does each API worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.text.core import TextCore
from engine.text.generation import TextEngine
from engine.text.tokenizer import Tokenizer
from executors.contract import ConfigError, ModelInfo, StateLayout
from server.answer.notation import ModelNotation, model_notation
from server.model_defaults import generation_config
from server.model_defaults.ollama_params import read_params
from server.model_defaults.pooling import DefaultPooling, default_pooling
from server.model_defaults.preset import Preset
from server.model_defaults.retrieval import EmbeddingPrompts, Scoring, embedding_prompts, scoring
from server.model_defaults.sampling import SamplingDefaults
from server.model_files import default_model
from server.model_files.ollama_package import read_package
from server.model_files.prepared import model_file
from server.prepare.chat_prompt import DEADLINE
from server.remote.messages import Serve
from server.settings.table import Settings
from server.state.prefix_keeping import PrefixKeeping
from server.state.server_state import ServedModel
from server.system.worker_threads import DeadlineExceeded, FencedThreads
from server.templates.joined_pairs import pair_form
from server.templates.template import ChatTemplate, resolve_chat_template


@dataclass(frozen=True, slots=True)
class TextSide:
    """One model's. `warnings`: about settings in the tokenizer's files that are not used. `preset`: what a package brings."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    defaults: SamplingDefaults
    warnings: tuple[str, ...]
    preset: Preset = field(default_factory=Preset)
    sampling_source: str = ""
    """`GenerationConfig.source`."""

    def drop_end_tokens_beyond(self, width: int) -> list[int]:
        """Ignore end tokens that have no logit among `width`; returns them."""
        beyond = sorted(one for one in self.tokenizer.eos_token_ids if one >= width)
        self.tokenizer.eos_token_ids -= set(beyond)
        return beyond


def read_text_side(settings: Settings, model_dir: Path, is_default: bool) -> TextSide:
    """Read the files. Raises ConfigError, also for a chat template that does not compile."""
    directory = Path(settings.tokenizer) if settings.tokenizer else model_dir
    if not directory.is_dir():
        raise ConfigError(f"--tokenizer {directory}: no such directory")
    package = read_package(model_dir)
    params = (
        None
        if package is None or settings.generation_config != generation_config.AUTO
        else read_params(package)
    )
    chosen = generation_config.choose(
        settings.generation_config,
        settings.override_generation_config,
        model_dir,
        default_model.SAMPLING if is_default else None,
        None if params is None else params.sampling,
    )
    tokenizer = Tokenizer.load(directory)
    tokenizer.eos_token_ids |= chosen.end_tokens  # no other object holds it yet
    notes = {
        line.partition("eos_token_id")[2] or line: line for line in (*tokenizer.warnings, *chosen.warnings)
    }
    # Both have read the same file.
    warnings = tuple(notes.values())
    source: str | Mapping[str, str] | None = tokenizer.chat_template
    origin = f"{model_file(directory) or directory}: chat template"
    if settings.chat_template:
        source, origin = resolve_chat_template(settings.chat_template, tokenizer.chat_template)
    template = None if source is None else ChatTemplate(source, tokenizer.special_tokens, origin)
    if package is None:
        return TextSide(tokenizer, template, chosen.defaults, warnings, sampling_source=chosen.source)
    warnings += package.notes + (() if params is None else params.notes)
    if package.template and template is not None and not settings.chat_template:
        warnings += (f"{package.where}: its template, in Go's language, is not used: its GGUF file's own is",)
    # Its end tokens count as such: a client may ask to ignore them.
    hidden = {
        text: one
        for text, one in tokenizer.added_tokens.items()
        if tokenizer.is_special(one) and one not in tokenizer.eos_token_ids
    }
    preset = Preset.of(package, params, hidden)
    return TextSide(tokenizer, template, chosen.defaults, warnings, preset, chosen.source)


async def detect_notation(
    settings: Settings, threads: FencedThreads, tokenizer: Tokenizer, template: ChatTemplate | None
) -> ModelNotation:
    """Detect the notation. A template that renders without end prevents the detection for its model, and nothing else."""
    parsers = (settings.tool_call_parser, settings.reasoning_parser)
    generic = settings.generic_tools
    try:
        return await threads.run(
            lambda: model_notation(tokenizer, template, *parsers, generic_tools=generic), DEADLINE
        )
    except DeadlineExceeded:
        return model_notation(tokenizer, template, *parsers, asks=False)


async def adapter_text_side(
    settings: Settings,
    threads: FencedThreads,
    tokenizer: Tokenizer,
    base: tuple[ChatTemplate | None, ModelNotation],
    source: str,
) -> tuple[ChatTemplate | None, ModelNotation]:
    """The template and the notation of an adapter that brings a chat template; `base`: the model's, which count if the operator
    chose the template. Raises ConfigError."""
    if settings.chat_template and base[0] is not None:
        return base
    template = ChatTemplate(source, tokenizer.special_tokens, "the adapter's chat template")
    return template, await detect_notation(settings, threads, tokenizer, template)


def retrieval_side(
    settings: Settings, tokenizer: Tokenizer, info: ModelInfo, model_dir: Path, names: Sequence[str]
) -> tuple[DefaultPooling, EmbeddingPrompts, Scoring]:
    """How a model of these `names` makes embeddings and scores. Raises ConfigError for files that declare it and cannot be
    read."""
    pooling = default_pooling(model_dir, info.poolings, info.vector_layers)
    aliases = (*names, settings.model or "", model_dir.name)
    single, chosen = tokenizer.single_token, settings.classifier_from_token
    return (
        pooling,
        embedding_prompts(model_dir),
        scoring(model_dir, aliases, info, pooling, single, chosen),
    )


def served_model(
    settings: Settings,
    core: TextCore,
    text: TextSide,
    notation: ModelNotation,
    info: ModelInfo,
    max_model_len: int,
    fingerprint: str,
    model_dir: Path,
    *,
    names: Sequence[str],
    drafts: bool,
    prefixes: PrefixKeeping,
    states: StateLayout | None,
    adapter: str | None = None,
) -> ServedModel:
    """The model that answers requests by `core`, under `names`. `prefixes`: where those of prompts are kept. `states`: those of
    layers, None if they keep none. `adapter`: digest of the one that is part of the model. Raises ConfigError for files that
    declare a pooling and cannot be read."""
    tokenizer = text.tokenizer
    pooling, prompts, how = retrieval_side(settings, tokenizer, info, model_dir, names)
    return ServedModel(
        engine=TextEngine(core, tokenizer),
        tokenizer=tokenizer,
        notation=notation,
        info=info,
        max_model_len=max_model_len,
        template=text.template,
        defaults=text.defaults,
        preset=text.preset,
        pooling=pooling,
        prompts=prompts,
        scoring=how,
        pairs=pair_form(text.template, tokenizer, info),
        fingerprint=fingerprint,
        salt_per_key=settings.cache_salt_per_key,
        drafts=drafts,
        log_prompts=settings.log_prompts,
        adapter=adapter,
        prefixes=prefixes,
        states=states,
    )


async def declared_model(
    settings: Settings,
    core: TextCore,
    threads: FencedThreads,
    text: TextSide,
    facts: Serve,
    model_dir: Path,
    names: Sequence[str],
) -> ServedModel:
    """The model as a process without an engine serves it, by `core`: `facts` are what a process with one tells of it. Raises as
    `served_model` and `detect_notation`."""
    text.drop_end_tokens_beyond(facts.info.logits_width)
    return served_model(
        settings,
        core,
        text,
        await detect_notation(settings, threads, text.tokenizer, text.template),
        facts.info,
        facts.max_model_len,
        facts.fingerprint,
        model_dir,
        names=names,
        drafts=facts.drafts,
        prefixes=facts.prefixes,
        states=facts.states,
        adapter=facts.own_adapter,
    )
