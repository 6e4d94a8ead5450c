"""`PassedChecks`: what need not be found right again, because an earlier life of the executor, or this one, has found it right.

A life on a device checks kernels, runs the largest steps and compiles kernels of all padded sizes. The next life of the same
server gets the names of what passed (`DeviceChecks`), and believes them under the same conditions: the same device by its own
number, its driver, the libraries, the sources of the kernels, the files of the model, and the settings. A fault is never
remembered: it is looked for again.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from executors.contract.config import ExecutorConfig
from executors.contract.status import DeviceChecks
from executors.llm.device.base import Device
from executors.llm.memory.fingerprint import COMPUTING, checkpoint_files, code_digest

_log = logging.getLogger(__name__)

_LIBRARIES = (
    "torch",
    "triton",
    "numpy",
    "flash-attn",
    "flash-attn-3",
    "flash-attn-4",
    "nvidia-cudnn-frontend",
    *(f"nvidia-{name}{version}" for name in ("cublas", "cudnn") for version in ("", "-cu12", "-cu13")),
)
"""Distributions whose code computes on a device, or compiles for it. Some can be upgraded beneath a torch that stays."""


class PassedChecks:
    """Used by the thread that loads. `conditions`: see the function; None: nothing of an earlier life is believed, and the next
    one is told nothing. `earlier`: what an earlier life has found."""

    def __init__(self, conditions: str | None = None, earlier: DeviceChecks | None = None) -> None:
        self._conditions = conditions
        self._passed: set[str] = set()
        if earlier is not None and conditions is not None:
            if earlier.conditions == conditions:
                self._passed.update(earlier.passed)
            else:
                _log.warning(
                    "kernels are checked again: device, driver, libraries, sources, files or settings are not those of the "
                    "earlier process"
                )

        self.believed = bool(self._passed)
        """Whether any check of an earlier life is believed."""

    def __contains__(self, name: str) -> bool:
        return name in self._passed

    def add(self, name: str) -> None:
        """Record that a check has passed."""
        self._passed.add(name)

    def fault(self, name: str, check: Callable[[], str | None]) -> str | None:
        """Return what `check` finds wrong, None if nothing is, or if the check of that name has passed before."""
        if name in self:
            return None
        wrong = check()
        if wrong is None:
            self.add(name)
        return wrong

    def record(self) -> DeviceChecks | None:
        """Return what the next life may believe."""
        return (
            None if self._conditions is None else DeviceChecks(self._conditions, tuple(sorted(self._passed)))
        )


def name_of(what: str, *facts: object) -> str:
    """Return the name of a check of something that depends on `facts`, by their `repr`."""
    return f"{what} {hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"


def conditions(config: ExecutorConfig, device: Device) -> str | None:
    """Return a digest of what checks on this device depend on; None if the device cannot be told from another one, or if there
    are several ranks, whose trials are common.

    What a first life chooses for the next ones (limits, sizes, pace) does not count: names of checks contain it where it matters.
    """
    identity = device.identity()
    if identity is None or config.parallel.world_size > 1:
        return None
    settings = replace(
        config, checks=None, pace=None, default_limits=(), max_model_len=None, max_num_seqs=0, max_num_batched_tokens=0,
        memory=replace(config.memory, kv_cache_memory_bytes=None, kv_on_demand=None),
    )  # fmt: skip
    models = filter(None, (config.model, config.optimization.draft_model))
    files = [line for model in models for line in checkpoint_files(Path(model))]
    versions = [(name, _version(name)) for name in _LIBRARIES]
    digest = hashlib.sha256(repr((identity, versions, settings, files)).encode(errors="replace"))
    digest.update(code_digest(COMPUTING))
    return digest.hexdigest()


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
