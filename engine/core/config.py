"""What the engine may be told."""

from __future__ import annotations

from dataclasses import dataclass

MAX_RESTART_PAUSE = 10.0


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of a step and of the queue, and how the engine bears failures."""

    max_num_seqs: int = 64
    """Sequences computed at once."""
    max_num_batched_tokens: int = 2048
    """Query tokens a step."""
    max_queued_seqs: int = 4096
    """Waiting sequences beyond which a request is refused as overloaded."""
    recovery_timeout: float = 120.0
    """Seconds for which a failing restart is tried again before the engine gives up for good."""
    restart_pause: float = 0.5
    """Seconds before the second try, doubling with each further one up to `MAX_RESTART_PAUSE`."""
    integrity_check_after: float = 1.0
    """Seconds of idleness after which the KV accounting is checked."""
