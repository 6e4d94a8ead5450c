"""`Ingress`: a server whose engines are elsewhere. It has everything of a server but the engine: HTTP, templates, tokenizer,
text, grammar judge, stored responses, stories.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path

import structlog
from fastapi import FastAPI

from engine.core.step_watch import SequenceView, StepWatch
from engine.interruptions import Outage
from engine.request import EngineStats, Stage
from executors.contract import ModelInfo
from server import hub
from server.grammar.validator import GrammarJudge
from server.http.listener import Listener
from server.model_files.made_tokenizer import tokenizer_directory
from server.remote.messages import Serve
from server.remote.replicas.core import FleetCore
from server.remote.replicas.figures import IngressMetrics
from server.remote.replicas.fleet import Fleet, Member, Transport
from server.remote.replicas.router import Router
from server.remote.replicas.routes import router_of
from server.remote.workers.remote_parts import DeclaredExecutor, RemoteLoras
from server.settings.load import SettingsError
from server.settings.table import Settings
from server.startup import banner
from server.startup.app import app_of
from server.startup.bootstrap import Bootstrap
from server.startup.core_configs import engine_config
from server.startup.lifecycle import HttpFrontEnd, serve_by
from server.startup.lora_models import models_of_adapters
from server.startup.new_state import new_state
from server.startup.text_side import declared_model, read_text_side
from server.state.server_state import ServedModel, ServerState
from server.system import gc_tuning, logs
from server.system.signals import Signals

log = structlog.get_logger("server")


def check_settings(settings: Settings) -> None:
    """Raises SettingsError for settings that mean nothing with several replicas, or would differ between them."""
    if settings.api_server_count:
        raise SettingsError(
            "--api-server-count: an ingress is one process; the Ray Serve application can have several (`ingresses`)"
        )
    if settings.lora_root is not None or settings.lora_on_demand:
        raise SettingsError(
            "--lora-root: with several replicas adapters are named at the start (--lora-modules), so that all have the same ones"
        )


def check_behind_proxy(settings: Settings) -> None:
    """Raises SettingsError for settings that mean nothing where Serve's proxies speak with clients."""
    for name in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs"):
        if getattr(settings, name):
            raise SettingsError(
                f"{name}: clients speak with Ray Serve's proxies, which know nothing of it; end TLS before them"
            )


class FleetView:
    """The fleet as routes, the stage and the log's line of figures see one engine. See `server.state.server_state.CoreLike`."""

    def __init__(self, fleet: Fleet, facts: Serve, core: FleetCore) -> None:
        self.executor = DeclaredExecutor(facts.capabilities)
        self.watch = StepWatch()
        """Never told anything: /v1/steps is passed on to a replica."""
        self.clock: Callable[[], float] = time.monotonic
        self._fleet, self._info, self._core = fleet, facts.info, core

    def info(self) -> ModelInfo:
        """The model's facts."""
        return self._info

    def sequences(self, most: int) -> list[SequenceView]:
        """None: the replicas tell them."""
        return []

    def outages(self) -> list[Outage]:
        """As `sequences`."""
        return []

    def stats(self) -> EngineStats:
        """Sums over replicas, as they reported last. READY while at least one is."""
        reports = [one.stats for one in self._fleet.present if one.stats is not None]
        usable = any(
            one.stage is Stage.READY and not one.why_not and not self._fleet.is_leaving(one.name)
            for one in self._fleet.present
        )
        unplaced = self._core.num_unplaced
        numbers = {
            field.name: sum(getattr(one, field.name) for one in reports)
            for field in dataclasses.fields(EngineStats)
            if field.type == "int"
        }
        numbers["waiting"] += unplaced
        return EngineStats(
            stage=Stage.DRAINING if self._core.draining else Stage.READY if usable else Stage.RECOVERING,
            detail="" if usable or self._core.draining else "no replica is ready",
            oldest_wait=max((one.oldest_wait for one in reports), default=0.0),
            **numbers,
        )


class Ingress:
    """Builds one ingress from its settings. Raises SettingsError or ConfigError if these cannot be served."""

    def __init__(self, settings: Settings, transport: Transport, router: Router | None = None) -> None:
        check_settings(settings)
        self.settings = settings
        self.parts = Bootstrap(settings)
        source = self.parts.loader.source
        if isinstance(source, hub.HubModel):  # replicas fetch the weights
            self.parts.loader.source = replace(source, weights=False)
        names = self.parts.names
        self.metrics = IngressMetrics(names[0], settings.metrics_compat)
        self.metrics.know_keys(self.parts.keys.names())
        self.state: ServerState = new_state(
            settings, names, self.parts.loader.aliases, self.metrics, self.parts.traces
        )
        self.config = engine_config(settings)
        self.core: FleetCore | None = None
        self._router = router
        self.fleet = Fleet(
            transport,
            self.config,
            self._joined,
            self._reported,
            self._left,
            lambda name: 0 if self.core is None else self.core.router.load(name),
        )
        self.metrics.watch_fleet(self.fleet, lambda: self.core)
        self.state.workers = self.metrics
        self._facts: Serve | None = None
        self._first: asyncio.Future[Member] = asyncio.get_running_loop().create_future()
        self._fleeting: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._never = asyncio.Event()

    def app(self, address: str) -> FastAPI:
        """The application. `address`: where clients reach it."""
        return app_of(self.settings, self.state, address, self.parts.keys, first=[router_of(self.fleet)])

    # -- Stoppable, for lifecycle --------------------------------------------------------------------------------------

    @property
    def failed(self) -> asyncio.Event:
        """Never set."""
        return self._never if self.core is None else self.core.failed

    async def drain(self, timeout: float) -> bool:
        """See `EngineCore.drain`."""
        return True if self.core is None else await self.core.drain(timeout)

    async def stop(self) -> None:
        """End all sequences and all links."""
        if self.core is not None:
            await self.core.stop()
        tasks = [task for task in (self._fleeting, self._starting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- load ----------------------------------------------------------------------------------------------------------

    async def load(self, starting: Coroutine[None, None, None] | None = None) -> ServedModel:
        """Read the model's text side, and wait for the first replica. `starting` raises if there will be none. Raises ConfigError
        or HubError."""
        self._fleeting = asyncio.create_task(self.fleet.run(), name="fleet")
        settings, parts, state = self.settings, self.parts, self.state
        directory = await parts.loader.find_model(state)
        text = await asyncio.to_thread(read_text_side, settings, directory, parts.loader.is_default)
        member = await self._first_member(starting)
        assert member.facts is not None and self.core is not None
        facts = member.facts.serve
        model = await declared_model(settings, self.core, state.threads, text, facts, directory, parts.names)
        tokenizer = tokenizer_directory(Path(settings.tokenizer or directory))
        state.judge = GrammarJudge(tokenizer, facts.info.logits_width)
        if facts.adapters is not None:
            served_by = models_of_adapters(settings, state.threads, text, model)
            adapters = RemoteLoras(member.questions, served_by, facts.max_loras, False)
            await adapters.replace(facts.adapters)
            state.adapters = adapters
        state.model = model
        state.progress = None
        return model

    async def _first_member(self, starting: Coroutine[None, None, None] | None) -> Member:
        if starting is not None:
            self._starting = asyncio.create_task(starting, name="start of the replicas")
            await asyncio.wait((self._first, self._starting), return_when=asyncio.FIRST_COMPLETED)
            if not self._first.done():
                self._starting.result()
        return await self._first

    def _joined(self, member: Member) -> None:
        """A replica says what it serves."""
        assert member.facts is not None
        facts = member.facts.serve
        if self._facts is None or self.core is None:
            self._facts = facts
            self.core = FleetCore(
                self.config,
                facts.max_model_len,
                facts.fingerprint,
                member.facts.layout.block_size,
                self.metrics,
                self._router,
            )
            self.state.core = FleetView(self.fleet, facts, self.core)  # type: ignore[assignment]  # its routes read no more
        member.why_not = _difference(self._facts, facts)
        if member.why_not:
            log.error(f"replica {member.name} gets no requests: {member.why_not}")
            return
        log.info(f"replica {member.name} is ready", replicas=len(self.fleet.present))
        self.core.join(member)
        if not self._first.done():
            self._first.set_result(member)

    def _reported(self, member: Member) -> None:
        if self.core is None or member.why_not:
            return
        if self.fleet.is_leaving(member.name):
            self.core.retire(member.name)
        else:
            self.core.rest(member.name, member.stage is not Stage.READY)

    def _left(self, member: Member, why: str) -> None:
        if member.facts is not None:
            log.warning(f"replica {member.name} is gone", reason=why)
        if self.core is not None:
            self.core.leave(member.name, why)


def _difference(first: Serve, other: Serve) -> str:
    """Why a replica cannot stand in for the first one; "" if it can."""
    if other.fingerprint != first.fingerprint:
        return (
            f"it serves another model, or with other settings ({other.fingerprint}, not {first.fingerprint})"
        )
    if other.max_model_len < first.max_model_len:
        return f"its sequences may have {other.max_model_len} tokens, not {first.max_model_len}"
    theirs = {(one.name, one.digest) for one in other.adapters or ()}
    missing = {(one.name, one.digest) for one in first.adapters or ()} - theirs
    return f"it lacks the adapters {', '.join(sorted(name for name, _ in missing))}" if missing else ""


async def serve(
    settings: Settings,
    transport: Transport,
    listener: Listener,
    replicas: int,
    starting: Coroutine[None, None, None],
) -> None:
    """Answer HTTP on `listener` until a signal comes. `replicas`: how many were asked for; `starting` raises if none will
    come."""
    signals = Signals()
    signals.install()
    ingress = Ingress(settings, transport)
    parts, state = ingress.parts, ingress.state
    app = ingress.app(listener.address)
    front = HttpFrontEnd(app, state, listener, parts.tls)
    host = "" if listener.any_address else settings.host
    url = banner.url_of(host, listener.port, secure=parts.tls is not None)
    log.info(f"listening on {url}", model=parts.names[0])
    for note in listener.notes:
        log.warning(note)

    async def load() -> None:
        model = await ingress.load(starting)
        gc_tuning.freeze_after_load()
        _announce(ingress, model, url, replicas)

    try:
        await serve_by(front, state, ingress, load, drain_timeout=settings.drain_timeout, signals=signals)
    finally:
        if parts.traces is not None:
            await asyncio.to_thread(parts.traces.close)


def _announce(ingress: Ingress, model: ServedModel, url: str, replicas: int) -> None:
    settings, parts = ingress.settings, ingress.parts
    [member, *_] = ingress.fleet.present
    assert member.facts is not None
    facts = banner.Facts(
        url=url,
        name=parts.names[0],
        info=model.info,
        scores=model.scoring.kind,
        layout=member.facts.layout,
        weight_bytes=member.facts.serve.capabilities.memory.parameter_memory,
        max_model_len=model.max_model_len,
        needs_key=settings.needs_key,
        admin_key=parts.keys.minted,
        template_lack=model.template_lack,
        notes={"replicas": f"{replicas}; the figures below are those of one"},
    )
    if logs.is_terminal(settings.log_format):
        banner.show(facts.text())
    else:
        facts.log()
    if parts.keys.minted is not None:
        banner.show_admin_key(parts.keys.minted)
