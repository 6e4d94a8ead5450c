"""A server of several models over the fakes: each is loaded when its gate is open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from server.models.entry import ModelEntry, ModelSpec
from server.models.port_models import ModelRow, PortModels
from server.models.table import ModelTable, SwapRules
from server.models.variants import Variant
from server.settings.table import DEFAULTS
from server.startup.app import create_app
from server.state.server_state import ServerState
from server.telemetry.metrics import Metrics
from tests.server.fakes import TEMPLATE, FakeLora, FakeLoras, House

TEMPERED = TEMPLATE + "{% if enable_thinking %}<think>{% endif %}"
"""A template with a variable."""


@dataclass(eq=False)
class LoadedHouse:
    """A loaded model: the state has it."""

    state: ServerState
    failed: asyncio.Event = field(default_factory=asyncio.Event)
    busy: bool = False

    async def park(self) -> None:
        raise AssertionError("nothing here runs for long")

    async def resume(self) -> None:
        raise AssertionError("nothing here is parked")

    spare_kv_bytes: int = 0
    given_kv_bytes: int = 0

    async def give_kv(self, num_bytes: int) -> None:
        raise AssertionError("nothing here is spare")

    async def take_kv(self, num_bytes: int) -> None:
        raise AssertionError("nothing here was given")

    async def stop(self) -> None:
        self.state.forget_model()


class SeveralHouse:
    """`houses`: the models by name. `gates`: cleared ones hold loads up. `faults`: what the next load raises."""

    def __init__(
        self,
        names: Sequence[str],
        variants: Mapping[str, Sequence[Variant]] | None = None,
        loras: Mapping[str, Mapping[str, str]] | None = None,
        **options: Any,
    ) -> None:
        self.houses = {name: House(names=(name,), template=TEMPERED) for name in names}
        self.gates = {name: asyncio.Event() for name in names}
        self.faults: dict[str, Exception] = {}
        self.state = ServerState(tuple(names), Metrics())
        rows = [
            self._row(name, (variants or {}).get(name, ()), (loras or {}).get(name, {})) for name in names
        ]
        self.table = ModelTable((row.entry for row in rows), 1000, SwapRules(retry_pause=0.05))
        self.state.models = PortModels(self.table, rows)
        self.options = options

    def _row(self, name: str, variants: Sequence[Variant], loras: Mapping[str, str]) -> ModelRow:
        house, several = self.houses[name], {one.name: one for one in variants}
        metrics = Metrics(model=name)
        own = self.state.of_model((name, *several), DEFAULTS, metrics, 120.0)
        self.gates[name].set()

        async def load() -> LoadedHouse:
            await self.gates[name].wait()
            if (fault := self.faults.pop(name, None)) is not None:
                raise fault
            own.model, own.core, own.judge = house.state.model, house.core, house.judge
            if loras:
                assert own.model is not None
                adapted = {one: replace(own.model, adapter=one, fingerprint=f"fp_{one}") for one in loras}
                own.adapters = FakeLoras({one: FakeLora(one, loras[one], adapted[one]) for one in loras})
            return LoadedHouse(own)

        return ModelRow(ModelEntry(ModelSpec(name=name, need=100), load), own, several, loras)

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
        app = create_app(self.state, **{"admin_key": "admin", **self.options})
        self.table.start()
        try:
            transport = httpx.ASGITransport(app, raise_app_exceptions=True)
            async with httpx.AsyncClient(transport=transport, base_url="http://server", **options) as client:
                yield client
        finally:
            await self.table.stop()
