"""Adapters as other processes than the server's know them: facts, and the models that answer under their names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from server.lora.registry import LoraRegistry
from server.remote.messages import LoraFacts
from server.settings.table import Settings
from server.startup.text_side import TextSide, adapter_text_side
from server.state.server_state import ServedModel
from server.system.worker_threads import FencedThreads


def models_of_adapters(
    settings: Settings, threads: FencedThreads, text: TextSide, model: ServedModel
) -> Callable[[LoraFacts], Awaitable[ServedModel]]:
    """Returns what makes the model that answers for an adapter, in a process that knows adapters by their facts."""
    base = model.template, model.notation

    async def served_by(facts: LoraFacts) -> ServedModel:
        template, notation = base
        if facts.template is not None:
            template, notation = await adapter_text_side(
                settings, threads, text.tokenizer, base, facts.template
            )
        return replace(
            model, adapter=facts.digest, template=template, notation=notation, fingerprint=facts.fingerprint
        )

    return served_by


def adapter_facts(registry: LoraRegistry) -> list[LoraFacts]:
    """All adapters as API workers know them, by name."""
    return [
        LoraFacts(
            one.name,
            one.root,
            one.created,
            one.packed.digest,
            one.model.fingerprint,
            one.source,
            list(one.notes),
        )
        for one in registry.all()
    ]
