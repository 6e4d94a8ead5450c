"""The state of a process that answers clients, before there is a model: of a server, and of the ingress of replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from server.apis.dialects import DIALECTS
from server.schemas.answers.chat import ReasoningField
from server.settings.load import SettingsError
from server.settings.table import Settings
from server.state.responses.store import MemoryResponseStore
from server.state.server_state import ServerState
from server.telemetry.metrics import Metrics
from server.telemetry.stories.ring import Stories

if TYPE_CHECKING:
    from server.telemetry.traces import Traces


def new_state(
    settings: Settings,
    names: tuple[str, ...],
    aliases: tuple[tuple[str, str], ...],
    metrics: Metrics,
    traces: Traces | None,
) -> ServerState:
    """The state of a process that answers clients and keeps stories and responses, before there is a model."""
    state = ServerState(names, metrics, settings, recovery_timeout=settings.recovery_timeout)
    state.write_timeout = settings.write_timeout
    state.reasoning_fields = reasoning_fields(settings.reasoning_field)
    state.aliases = aliases
    state.unread_parts = settings.unread_parts
    state.responses = MemoryResponseStore(
        settings.responses_store_entries, settings.responses_store_bytes, settings.responses_store_age
    )
    state.stories = Stories(settings.stories)
    if traces is not None:
        state.stories.on_end(traces.tell)
    return state


def open_traces(endpoint: str | None) -> Traces | None:
    """What sends traces to this URL; None without one. Raises SettingsError for a bad URL, and without the packages."""
    if endpoint is None:
        return None
    if not endpoint.startswith(("http://", "https://")):
        raise SettingsError(
            f"--otlp-traces-endpoint {endpoint}: a URL such as http://localhost:4318/v1/traces"
        )
    try:
        from server.telemetry.traces import Traces
    except ModuleNotFoundError as error:
        message = f"--otlp-traces-endpoint needs {error.name}: pip install 'cohort-server[otel]'"
        raise SettingsError(message) from None
    return Traces(endpoint, {route: name for dialect in DIALECTS for route, name in dialect.spans.items()})


def reasoning_fields(chosen: str) -> tuple[ReasoningField, ...]:
    """The names of the reasoning field for a value of `--reasoning-field`."""
    return ("reasoning", "reasoning_content") if chosen == "both" else (cast(ReasoningField, chosen),)
