"""`LoraRegistry`: the names of adapters, and the model that answers for each.

A name stands for one content at a time. Loading under a used name makes the name stand for the new content; streams that began
before go on with the old one, which the engine keeps until the last of them has ended. Two names may share a content.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import structlog

from engine.core.lora import LoraUse
from engine.errors import InvalidRequest, ModelNotFound, Unavailable
from executors.contract import ConfigError
from server.answer.notation import ModelNotation
from server.lora.files import (
    CONFIG,
    GGUF,
    TEXT_FILES,
    WEIGHTS,
    below,
    copy_files,
    own_template,
    shown_name,
    weights_file,
)
from server.lora.store import LoraStore
from server.state.server_state import ServedModel
from server.templates.template import ChatTemplate

log = structlog.get_logger("server")

MAX_NAME = 200
MOST_ON_DEMAND = 256
"""Adapters that `--lora-on-demand` keeps loaded; the one unused for longest is unloaded for another one."""
MOST_BYTES = 8 << 30
"""Of an adapter's weights: rank 256 on all linears of a 70B model has 6.6 GB in float16."""


class PackedLora(Protocol):
    """An adapter that was read and put into one file."""

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def digest(self) -> str:
        """SHA-256 of its content, hexadecimal."""

    @property
    def rank(self) -> int:
        """The largest of its modules."""

    @property
    def base_model(self) -> str | None:
        """The base model that it is said to be for."""

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each thing in its files that is not used."""


Pack = Callable[[Path, Path, str], PackedLora]
"""Reads the adapter in a folder and writes it as one file into another; the text is the name of its weights in messages. Raises
ConfigError."""


class EngineLike(Protocol):
    """The part of `engine.core.engine.EngineCore` that adapters need."""

    async def add_adapter(self, digest: str, path: str, forgotten: Callable[[], None]) -> bool:
        """See `Loras.add`."""

    def drop_adapter(self, digest: str) -> None:
        """See `Loras.drop`."""

    def adapter_uses(self) -> list[LoraUse]:
        """Known adapters by digest."""

    @property
    def adapter_moves(self) -> tuple[int, int]:
        """Loads and evictions so far."""


TextSide = Callable[[str], Awaitable[tuple[ChatTemplate | None, ModelNotation]]]
"""Compiles the source of an adapter's own chat template, and finds the notation that it brings. Raises ConfigError."""


@dataclass(frozen=True, slots=True)
class ServedLora:
    """A name and what it stands for now. `root`: where it was loaded from, as it was said. `created`: Unix seconds. `source`: of
    its own chat template, None without one."""

    name: str
    root: str
    packed: PackedLora
    model: ServedModel
    created: int
    on_demand: bool
    source: str | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each thing in its files that is not used."""
        return self.packed.notes


class LoraRegistry:
    """One for a server. Belongs to its event loop; files are read and written on threads."""

    def __init__(
        self,
        engine: EngineLike,
        model: ServedModel,
        names: tuple[str, ...],
        store: LoraStore,
        pack: Pack,
        text_side: TextSide,
        *,
        max_loras: int,
        root: Path | None = None,
        on_demand: bool = False,
        changed: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`names` of the base model, which no adapter may have. `root`: what lies below it may be loaded over HTTP; None:
        nothing. `on_demand`: also by being named in a request. `changed` is awaited when names stand for something else."""
        self.max_loras = max_loras
        self._engine = engine
        self._model = model
        self._base_names = names
        self._store = store
        self._pack = pack
        self._text_side = text_side
        self._root = root
        self._on_demand = on_demand
        self._changed = changed or _no_listener
        self._adapters: dict[str, ServedLora] = {}
        """In order of their last use."""
        self._turn = asyncio.Lock()

    # -- what there is -------------------------------------------------------------------------------------------------

    def get(self, name: str) -> ServedLora | None:
        """The adapter of this name, which counts as used now."""
        adapter = self._adapters.pop(name, None)
        if adapter is not None:
            self._adapters[name] = adapter
        return adapter

    def all(self) -> list[ServedLora]:
        """By name."""
        return sorted(self._adapters.values(), key=lambda one: one.name)

    def uses(self) -> list[tuple[str, LoraUse]]:
        """Sequences of each adapter. One that several names share comes once, with the first of them; one that no name stands
        for any more has the name "unloaded"."""
        names: dict[str, str] = {}
        for one in self.all():
            names.setdefault(one.packed.digest, one.name)
        return [(names.get(use.digest, "unloaded"), use) for use in self._engine.adapter_uses()]

    @property
    def moves(self) -> tuple[int, int]:
        """How often the executor loaded an adapter, and how often one gave way to another."""
        return self._engine.adapter_moves

    # -- load and unload -----------------------------------------------------------------------------------------------

    async def load_below_root(self, name: str, path: str, *, replaces: bool = True) -> None:
        """Load what a client names, from below the root. `replaces`: a used name may stand for it from now on.

        Raises InvalidRequest, ModelNotFound, Unavailable.
        """
        if self._root is None:
            message = "This server loads no adapters over HTTP: start it with --lora-root DIR."
            raise InvalidRequest(message, "lora_path", "unsupported_parameter")
        root = self._root
        if not replaces and name in self._adapters:
            raise InvalidRequest(f"The LoRA adapter '{name[:200]}' has already been loaded.", "lora_name")
        folder = await asyncio.to_thread(below, root, path)
        await self.load(name, folder, path, root=root)

    async def load(
        self,
        name: str,
        folder: Path,
        path: str,
        *,
        root: Path | None = None,
        base_model: str | None = None,
        on_demand: bool = False,
    ) -> ServedLora:
        """Load a folder's adapter and let `name` stand for it. `path`: how the folder is called in /v1/models. `root`: its files
        must lie below it.

        Raises InvalidRequest for a name or an adapter that cannot be used, Unavailable while the executor is away.
        """
        self._check_name(name)
        async with self._turn:
            return await self._load(name, folder, path, root, base_model, on_demand)

    async def _load(
        self, name: str, folder: Path, path: str, root: Path | None, base_model: str | None, on_demand: bool
    ) -> ServedLora:
        place = self._store.place()
        is_loaded = False
        try:
            packed, source = await asyncio.to_thread(self._read, folder, place, root, path)
            text = None if source is None else await self._text_side(source)
            is_loaded = await self._engine.add_adapter(
                packed.digest, str(packed.path), functools.partial(self._store.remove, place)
            )
        except ConfigError as error:
            raise InvalidRequest(f"The adapter '{name}' cannot be loaded: {error}", "lora_path") from None
        except OSError as error:
            raise Unavailable(f"The adapter '{name}' cannot be copied: {error.strerror}.") from None
        finally:
            if not is_loaded:
                await asyncio.to_thread(self._store.remove, place)
        self._warn_of_base(name, base_model or packed.base_model)
        template, notation = text or (self._model.template, self._model.notation)
        model = replace(
            self._model,
            adapter=packed.digest,
            template=template,
            notation=notation,
            fingerprint=f"{self._model.fingerprint}-{packed.digest[:10]}",
        )
        before = self._adapters.pop(name, None)
        adapter = self._adapters[name] = ServedLora(
            name, path, packed, model, int(time.time()), on_demand, source
        )
        await self._told(() if before is None else (before,))
        for note in packed.notes:
            log.warning(f"adapter {name}: {note}")
        log.info(f"adapter {name} loaded", path=path, rank=packed.rank, digest=packed.digest[:12])
        return adapter

    def _read(self, folder: Path, place: Path, root: Path | None, path: str) -> tuple[PackedLora, str | None]:
        """Copy and check the files, and find the adapter's own chat template. Copies of what is read once are removed."""
        copy_files(folder, place, MOST_BYTES, root)
        file = weights_file(folder)
        packed = self._pack(place, place, shown_name(path, folder, file))
        source = own_template(place)
        for name in (CONFIG, WEIGHTS, GGUF, *TEXT_FILES):
            with suppress(FileNotFoundError):
                (place / name).unlink()
        return packed, source

    async def unload(self, name: str) -> None:
        """Forget a name. Streams that use what it stands for go on. Raises ModelNotFound."""
        async with self._turn:
            adapter = self._adapters.pop(name, None)
            if adapter is None:
                raise ModelNotFound(f"The LoRA adapter '{name[:200]}' is not loaded.", "lora_name")
            await self._told((adapter,))
        log.info(f"adapter {name} unloaded")

    async def _told(self, replaced: Sequence[ServedLora]) -> None:
        """The table has changed: tell those who have a copy, then let go of what it replaced, so that no worker asks for that."""
        try:
            await self._changed()
        finally:
            for adapter in replaced:
                self._let_go(adapter)

    def _let_go(self, adapter: ServedLora) -> None:
        digest = adapter.packed.digest
        if all(other.packed.digest != digest for other in self._adapters.values()):
            self._engine.drop_adapter(digest)

    async def find(self, name: str) -> ServedLora | None:
        """The adapter of a name that a request gives; with `on_demand` it is loaded if it lies below the root.

        Raises InvalidRequest if it is there and cannot be loaded.
        """
        adapter = self.get(name)
        if adapter is not None or not self._on_demand or self._root is None or name in self._base_names:
            return adapter
        try:
            folder = await asyncio.to_thread(below, self._root, name, "model")
        except InvalidRequest:
            return None
        async with self._turn:
            if (adapter := self.get(name)) is not None:
                return adapter  # loaded for another request meanwhile
            self._check_name(name)
            try:
                adapter = await self._load(name, folder, name, self._root, None, True)
            except InvalidRequest as error:
                error.rename("model")
                raise
            others = [one for one in self._adapters.values() if one.on_demand]
            surplus = others[: max(0, len(others) - MOST_ON_DEMAND)]
            for one in surplus:
                del self._adapters[one.name]
            if surplus:
                await self._told(surplus)
        return adapter

    def _check_name(self, name: str) -> None:
        if not name.strip() or len(name) > MAX_NAME or not name.isprintable():
            message = f"'lora_name' must have 1 to {MAX_NAME} printable characters."
            raise InvalidRequest(message, "lora_name")
        if name in self._base_names:
            message = f"'{name}' is the name of the model: an adapter needs a name of its own."
            raise InvalidRequest(message, "lora_name")

    def _warn_of_base(self, name: str, base: str | None) -> None:
        """Names differ between copies of one model, so another name is no reason to refuse: shapes decide."""
        if base and not any(base.rpartition("/")[2] == one.rpartition("/")[2] for one in self._base_names):
            log.warning(f"adapter {name} says it is for {base}", served=self._base_names[0])

    def close(self) -> None:
        """Remove all copies."""
        self._store.close()


async def _no_listener() -> None:
    """No other process has a copy of the table."""
