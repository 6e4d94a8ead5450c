"""A memory and race checker for interpreted Triton kernels: what compute-sanitizer finds between programs on a GPU.

Every load, store and atomic of a launch is compared with the tensors that were passed to it:

    bounds   an address that is in none of them, in a lane that its mask lets through
    races    two programs of a launch use one address, one of them writes, and no counter orders them

Programs are ordered by atomics that release and acquire: what a program wrote before it counted is seen by a program that
counts behind it (vector clocks, as in FastTrack by Flanagan and Freund, 2009). The interpreter runs programs one after
another, so a race gives right results here and wrong ones on a device. Races between threads of one program are not seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

_NONE, _MANY = -1, -2


class MemoryFault(AssertionError):
    """A kernel used memory that is not its own, or not its own at that time."""


@dataclass
class _Region:
    """Bytes `begin` to `end` of one or more arguments; `unit`: bytes of the smallest element. Of each element the program that
    wrote it last, the one that read it, and their clocks then."""

    begin: int
    end: int
    unit: int
    _marks: dict[str, np.ndarray] = field(default_factory=dict)

    def marks(self, name: str, empty: int) -> np.ndarray:
        if name not in self._marks:
            self._marks[name] = np.full((self.end - self.begin) // self.unit, empty, np.int32)
        return self._marks[name]


class Launch:
    """One launch, from its arguments on."""

    def __init__(self, name: str, tensors: list[torch.Tensor]) -> None:
        self.name = name
        self._regions = _regions(tensors)
        self._begins = np.array([one.begin for one in self._regions], np.uint64)
        self._ends = np.array([one.end for one in self._regions], np.uint64)
        self._clock: dict[int, int] = defaultdict(int)
        self._seen: dict[int, dict[int, int]] = defaultdict(dict)
        """By program: the clocks of others up to which it sees what they wrote."""
        self._released: dict[int, dict[int, int]] = defaultdict(dict)
        """By address of a counter: what a program sees that counts there."""

    def use(self, addresses: np.ndarray, size: int, program: int, what: str) -> None:
        """A program reads or writes elements of `size` bytes. Raises MemoryFault."""
        addresses = addresses.astype(np.uint64).ravel()
        if not len(addresses):
            return
        found = np.searchsorted(self._begins, addresses, side="right").astype(np.int64) - 1
        outside = found < 0
        outside |= addresses + np.uint64(size) > self._ends[np.maximum(found, 0)]
        if outside.any():
            where = self._ends[np.maximum(found[outside][0], 0)] if len(self._ends) else 0
            raise MemoryFault(
                f"{self.name}, program {program}: {what} of {int(outside.sum())} elements outside its arguments, the first "
                f"{int(addresses[outside][0]) - int(where)} bytes behind the end of one"
            )
        if what == "atomic":
            return
        for number in np.unique(found).tolist():
            region = self._regions[number]
            at = np.unique(
                (addresses[found == number] - np.uint64(region.begin)).astype(np.int64) // region.unit
            )
            wide = size // region.unit
            at = (at[:, None] + np.arange(wide)).ravel() if wide > 1 else at
            self._ordered(region, at, "written", program, what)
            if what == "write":
                self._ordered(region, at, "read", program, what)
            self._mark(region, at, "written" if what == "write" else "read", program)

    def _ordered(self, region: _Region, at: np.ndarray, by: str, program: int, what: str) -> None:
        users, clocks = region.marks(by, _NONE)[at], region.marks(f"{by} at", 0)[at]
        for user in np.unique(users).tolist():
            if user in (_NONE, program):
                continue
            latest = int(clocks[users == user].max())
            if user == _MANY or self._seen[program].get(user, -1) < latest:
                raise MemoryFault(
                    f"{self.name}, program {program}: {what} of an element {by} by program {user}, which nothing orders"
                )

    def _mark(self, region: _Region, at: np.ndarray, by: str, program: int) -> None:
        users = region.marks(by, _NONE)
        if by == "read":
            before = users[at]
            users[at] = np.where((before == _NONE) | (before == program), program, _MANY)
        else:
            users[at] = program
        region.marks(f"{by} at", 0)[at] = self._clock[program]

    def count(self, addresses: np.ndarray, program: int) -> None:
        """A program counts at these addresses, with release and acquire."""
        seen = self._seen[program]
        for address in np.unique(addresses).tolist():
            released = self._released[address]
            for other, clock in released.items():
                seen[other] = max(clock, seen.get(other, -1))
        for address in np.unique(addresses).tolist():
            self._released[address].update(seen)
            self._released[address][program] = self._clock[program]
        self._clock[program] += 1


def _regions(tensors: list[torch.Tensor]) -> list[_Region]:
    """The memory of the arguments; those that overlap are one."""
    spans = []
    for one in tensors:
        if one.numel():
            last = sum((size - 1) * step for size, step in zip(one.shape, one.stride(), strict=True))
            spans.append(
                (one.data_ptr(), one.data_ptr() + (last + 1) * one.element_size(), one.element_size())
            )
    made: list[_Region] = []
    for begin, end, unit in sorted(spans):
        if made and begin < made[-1].end:
            made[-1].end, made[-1].unit = max(end, made[-1].end), min(unit, made[-1].unit)
        else:
            made.append(_Region(begin, end, unit))
    return made


class Checker:
    """Stands for the interpreter's own access to memory. `launches`: names of the kernels that were checked."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self.launches: list[str] = []
        self._launch: Launch | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._memory, name)

    def begin(self, name: str, tensors: list[torch.Tensor]) -> None:
        """Begin a launch."""
        self.launches.append(name)
        self._launch = Launch(name, tensors)

    def _use(self, addresses: np.ndarray, mask: np.ndarray, size: int, what: str) -> np.ndarray:
        assert self._launch is not None
        addresses, mask = np.broadcast_arrays(addresses, mask)
        chosen = np.asarray(addresses)[np.asarray(mask, bool)]
        self._launch.use(chosen, size, _program(), what)
        return chosen

    def load(self, addresses: Any, mask: Any, other: Any, dtype: Any) -> Any:
        """As the interpreter's."""
        self._use(addresses, mask, np.dtype(dtype).itemsize, "read")
        return self._memory.load(addresses, mask, other, dtype)

    def store(self, addresses: Any, value: Any, mask: Any) -> Any:
        """As the interpreter's."""
        self._use(addresses, mask, value.dtype.itemsize, "write")
        return self._memory.store(addresses, value, mask)

    def atomic_rmw(self, how: Any, addresses: Any, value: Any, mask: Any, order: Any) -> Any:
        """As the interpreter's."""
        assert self._launch is not None
        chosen = self._use(addresses, mask, value.dtype.itemsize, "atomic")
        if order == self._memory.MEM_SEMANTIC.ACQUIRE_RELEASE:
            self._launch.count(chosen, _program())
        return self._memory.atomic_rmw(how, addresses, value, mask, order)


def _program() -> int:
    x, y, z = interpreter.interpreter_builder.grid_idx
    wide, high, _ = interpreter.interpreter_builder.grid_dim
    return int(x + wide * (y + high * z))


@contextmanager
def checked() -> Iterator[Checker]:
    """Check every launch of an interpreted kernel meanwhile. Raises MemoryFault, as `InterpreterError` of a launch."""
    checker = Checker(interpreter._interpreter)
    prepare = interpreter.GridExecutor._init_args_hst

    def prepared(self: Any, args: Any, kwargs: Any) -> Any:
        here, named = prepare(self, args, kwargs)
        tensors = [one for one in (*here, *named.values()) if isinstance(one, torch.Tensor)]
        checker.begin(self.fn.__name__, tensors)
        return here, named

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_interpreter", checker)
        patch.setattr(interpreter.GridExecutor, "_init_args_hst", prepared)
        yield checker
