"""`PortModels`: the models of a server by the names that clients give, over the `ModelTable`."""

from __future__ import annotations

import contextlib
import difflib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from engine.errors import ModelNotFound
from server.http.call import Call
from server.models.entry import ModelEntry, ModelStatus
from server.models.table import ModelTable
from server.models.variants import Variant
from server.state.server_state import ModelState, ServedModel, ServerState

_MOST_NAMES = 16
"""Names that are told to a request for another one."""
_TAG = ":latest"
_SCAN_PAUSE = 2.0
"""Seconds between two looks at the folder of models."""
_WORDS: dict[ModelStatus, ModelState] = {
    ModelStatus.READY: "loaded",
    ModelStatus.LOADING: "loading",
    ModelStatus.FAILED: "failed",
}
"""States that clients tell apart from `unloaded`."""


@dataclass(eq=False)
class ModelRow:
    """One model: its place in the table, and what routes read of it."""

    entry: ModelEntry
    state: ServerState
    variants: Mapping[str, Variant] = field(default_factory=dict)
    """Further names, with what is different under them."""
    loras: Mapping[str, str] = field(default_factory=dict)
    """Names under which the model answers with an adapter, and where that is loaded from."""

    @property
    def name(self) -> str:
        """Its own name."""
        return self.entry.name

    @property
    def names(self) -> Sequence[str]:
        """All names that clients give it, its own first."""
        return (self.name, *self.aliases, *self.variants, *self.loras)

    @property
    def aliases(self) -> Sequence[str]:
        """Further names of it."""
        return self.entry.spec.aliases

    def lora_of(self, name: str | None) -> str | None:
        """The adapter that one of its names stands for; None: the model without one."""
        return next((one for one in _forms(name or "") if one in self.loras), None)

    def served(self, name: str | None, model: ServedModel) -> ServedModel:
        """The model as it answers under one of its names."""
        variant = next((self.variants[one] for one in _forms(name or "") if one in self.variants), None)
        return model if variant is None else variant.of(model)

    @property
    def status(self) -> ModelState:
        """What it is doing. A parked model is loading again as soon as there is room."""
        if self.entry.wanted_since is not None or self.entry.fetching:
            return "loading"
        return _WORDS.get(self.entry.status, "unloaded")

    @property
    def reason(self) -> str:
        """Why it is `failed`, "" otherwise."""
        return self.entry.reason if self.entry.status is ModelStatus.FAILED else ""

    @property
    def need(self) -> int:
        """Bytes that it needs while it is loaded."""
        return self.entry.need

    @property
    def pinned(self) -> bool:
        """Whether it stays loaded."""
        return self.entry.spec.pin

    @property
    def expires_in(self) -> float | None:
        """Seconds after which it is unloaded if no call comes; None: never, or it is not loaded."""
        entry = self.entry
        if entry.status is not ModelStatus.READY or math.isinf(entry.expires_at):
            return None
        return entry.keep if entry.users else max(0.0, entry.expires_at - time.monotonic())


class NamedModels(ABC):
    """See `server.state.server_state.ModelsLike`."""

    table: ModelTable

    @property
    def budget(self) -> float:
        """Bytes that all loaded models may need together; infinity: no limit."""
        return self.table.budget

    @abstractmethod
    def rows(self) -> Sequence[ModelRow]:
        """In the order of their declaration."""

    @abstractmethod
    def find(self, name: str | None) -> ModelRow:
        """The model of a name. Raises ModelNotFound."""

    @abstractmethod
    async def refresh(self) -> None:
        """Make models known that have come into the folder of models."""

    async def find_or_scan(self, name: str | None) -> ModelRow:
        """As `find`; where the name is unknown, the folder of models is looked at again."""
        try:
            return self.find(name)
        except ModelNotFound:
            await self.refresh()
            return self.find(name)

    async def hold(
        self, name: str | None, call: Call, *, keep: float | None = None, deadline: float | None = None
    ) -> ModelRow:
        """The model, loaded and held until `call` ends."""
        row = await self.find_or_scan(name)
        lease = await self.table.acquire(row.entry, keep=keep, deadline=deadline)
        call.hold(lease.release)
        return row

    async def load(self, name: str) -> None:
        """Load it."""
        await self.table.load((await self.find_or_scan(name)).entry)

    def unload(self, name: str) -> None:
        """Unload it as soon as no call uses it."""
        self.table.unload(self.find(name).entry)

    def _not_found(self, name: str) -> ModelNotFound:
        names = [one for row in self.rows() for one in row.names]
        near = difflib.get_close_matches(name[:200], names, n=1, cutoff=0.5)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        served = ", ".join(f"'{row.name}'" for row in self.rows()[:_MOST_NAMES]) or "none for this key"
        more = f" and {len(self.rows()) - _MOST_NAMES} more" if len(self.rows()) > _MOST_NAMES else ""
        message = f"The model '{name[:200]}' does not exist.{hint} This server has: {served}{more}."
        return ModelNotFound(message, param="model")


class PortModels(NamedModels):
    """All of them."""

    def __init__(
        self,
        table: ModelTable,
        rows: Sequence[ModelRow],
        rescan: Callable[[], Awaitable[Sequence[ModelRow]]] | None = None,
    ) -> None:
        """`rescan` looks at the folder of models again, and returns rows of models that are new, or were damaged and no longer
        are; None: there is no folder."""
        self.table = table
        self._rows: dict[str, ModelRow] = {}
        self._by_name: dict[str, ModelRow] = {}
        for row in rows:
            self._add(row)
        self._rescan = rescan
        self._scanned_at = time.monotonic()

    def _add(self, row: ModelRow) -> None:
        self._rows[row.name] = row
        for name in row.names:
            self._by_name[name] = row

    def rows(self) -> Sequence[ModelRow]:
        """In the order of their declaration."""
        return tuple(self._rows.values())

    async def refresh(self) -> None:
        """Make models known that have come into the folder of models, at most every `_SCAN_PAUSE` seconds."""
        if self._rescan is None or time.monotonic() - self._scanned_at < _SCAN_PAUSE:
            return
        self._scanned_at = time.monotonic()
        for row in await self._rescan():
            self.table.entries[row.name] = row.entry
            self._add(row)

    def only(self, patterns: Sequence[str]) -> LimitedModels:
        """Those with a name that one of `patterns` fits."""
        return LimitedModels(self, patterns)

    def find(self, name: str | None) -> ModelRow:
        """The model of a name or alias, with or without Ollama's tag; without a name the first one."""
        if not name:
            return next(iter(self._rows.values()))
        row = next((self._by_name[one] for one in _forms(name) if one in self._by_name), None)
        if row is None:
            raise self._not_found(name)
        return row


def _forms(name: str) -> tuple[str, ...]:
    """A name as it is given, and with or without Ollama's tag."""
    return name, name.removesuffix(_TAG), name + _TAG


class LimitedModels(NamedModels):
    """The models that a client may know: for it there are no others."""

    def __init__(self, models: PortModels, patterns: Sequence[str]) -> None:
        self.table = models.table
        self._models = models
        self._patterns = patterns

    def rows(self) -> Sequence[ModelRow]:
        """In the order of their declaration."""
        return [row for row in self._models.rows() if self._knows(row)]

    def find(self, name: str | None) -> ModelRow:
        """As of all models; without a name the first that the client knows."""
        if not name:
            if rows := self.rows():
                return rows[0]
            raise self._not_found("")
        with contextlib.suppress(ModelNotFound):
            if self._knows(row := self._models.find(name)):
                return row
        raise self._not_found(name)

    async def refresh(self) -> None:
        """As of all models."""
        await self._models.refresh()

    def only(self, patterns: Sequence[str]) -> LimitedModels:
        """Those of all models with a name that one of `patterns` fits."""
        return LimitedModels(self._models, patterns)

    def _knows(self, row: ModelRow) -> bool:
        return any(fnmatchcase(name, pattern) for name in row.names for pattern in self._patterns)
