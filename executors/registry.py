"""Executors by name. Standard library only: a factory is imported when it is first asked for.

create("llm", config)      an executor of a built-in or registered factory
ExecutorRegistry           live executors by name, for `GET /v1/executors` and metrics
"""

from __future__ import annotations

import importlib
from typing import NamedTuple

from executors.contract import (
    ConfigError,
    ExecutorConfig,
    ExecutorMetrics,
    ModelExecutor,
    ModelExecutorFactory,
)


class _BuiltIn(NamedTuple):
    path: str
    imports: tuple[str, ...] = ()


_BUILT_IN = {
    "echo": _BuiltIn("executors.testing.fakes.echo:EchoFactory"),
    "paged_fake": _BuiltIn("executors.testing.fakes.paged:PagedFakeFactory"),
    "state_fake": _BuiltIn("executors.testing.fakes.state:StateFakeFactory"),
    "llm": _BuiltIn("executors.llm.factory:LlmFactory", ("executors.llm.imports",)),
    "qwen3": _BuiltIn(
        "executors.qwen3.factory:Qwen3Factory", ("executors.llm.imports", "executors.qwen3.executor")
    ),
}
_factories: dict[str, ModelExecutorFactory] = {}


def register_factory(name: str, factory: ModelExecutorFactory) -> None:
    """Make a third party's executor known under a name. Raises ConfigError when the name is taken."""
    if name in _BUILT_IN or name in _factories:
        raise ConfigError(f"executor {name!r} is registered already")
    _factories[name] = factory


def names() -> list[str]:
    """Names that `factory` knows so far, sorted; third parties' dotted ones once they were asked for."""
    return sorted({*_BUILT_IN, *_factories})


def factory(name: str) -> ModelExecutorFactory:
    """The factory of that name; `package.module:Class` names a third party's directly. Raises ConfigError."""
    if name in _factories:
        return _factories[name]
    path = _BUILT_IN[name].path if name in _BUILT_IN else name
    module, _, attribute = path.partition(":")
    if not attribute:
        raise ConfigError(
            f"unknown executor {name!r}; known: {', '.join(names())} (or package.module:Factory)"
        )
    try:
        instance = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"executor {name!r} cannot be imported: {error}") from error
    if not isinstance(instance, ModelExecutorFactory):
        raise ConfigError(f"executor {name!r}: {attribute} is not a ModelExecutorFactory")
    _factories[name] = instance
    return instance


def imports_of(name: str) -> tuple[str, ...]:
    """Modules whose import takes long and that every executor of that name needs; () for third parties' executors."""
    return _BUILT_IN[name].imports if name in _BUILT_IN else ()


def create(config: ExecutorConfig) -> ModelExecutor:
    """Validate and create the executor that `config.executor` names; nothing is loaded yet. Raises ConfigError."""
    chosen = factory(config.executor)
    chosen.validate_config(config)
    return chosen.create_executor(config)


class ExecutorRegistry:
    """Live executors by name. One writer: the composition root."""

    def __init__(self) -> None:
        self._executors: dict[str, ModelExecutor] = {}

    def register(self, name: str, executor: ModelExecutor) -> None:
        """Add one. Raises ConfigError when the name is taken."""
        if name in self._executors:
            raise ConfigError(f"an executor named {name!r} is registered already")
        self._executors[name] = executor

    def get(self, name: str) -> ModelExecutor | None:
        """The executor, or None."""
        return self._executors.get(name)

    def remove(self, name: str) -> ModelExecutor | None:
        """Take one out and return it (the caller shuts it down), or None."""
        return self._executors.pop(name, None)

    def list_names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._executors)

    def get_metrics(self) -> dict[str, ExecutorMetrics]:
        """Metrics of each executor by name."""
        return {name: executor.metrics() for name, executor in sorted(self._executors.items())}
