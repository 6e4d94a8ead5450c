"""`EngineConfig`: the settings of the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MAX_RESTART_PAUSE = 10.0
MAX_FAILED_STEPS = 3
"""A sequence that was in so many failed steps in a row is failed; the others of those steps go on."""
FAILED_STEPS_BEFORE_ALONE = 2
"""After so many of them it is computed in steps of its own, so that the last failure has one culprit."""

STEP_TOKENS = 2048
"""Most query tokens of a step if neither the configuration nor the executor says."""

MAX_FRUITLESS_RESTARTS = 16
"""The executor died so many times in a row without a token in between: no single request can be to blame for all of
them, and another restart would not help. The process that started the server learns it from the exit code."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of a step and of the queue, and how the engine bears failures."""

    max_num_seqs: int | None = None
    """Most sequences computed at once; None: as many as the executor takes."""
    max_num_batched_tokens: int | None = None
    """Most query tokens of a step; None: as many as the executor takes."""
    max_queued_seqs: int = 4096
    """Waiting sequences beyond which a request is refused as overloaded."""
    max_queued_tokens: int = 1 << 22
    """Tokens of waiting prompts beyond which a request is refused as overloaded, unless nothing waits."""
    max_queue_wait: float = 60.0
    """Seconds. A request that would wait longer to be started, by the executor's pace and by what was measured, is refused as
    overloaded; one that has waited so long is dropped as overloaded. 60 is what proxies wait for an answer's first byte, and the
    longest `Retry-After` that OpenAI's client obeys."""
    recovery_timeout: float = 120.0
    """Seconds for which a failing restart is tried again before the engine gives up for good. A load that is under way then may
    take four times as long again."""
    restart_pause: float = 0.5
    """Seconds before the second try, doubling with each further one up to `MAX_RESTART_PAUSE`."""
    integrity_check_after: float = 1.0
    """Seconds of idleness after which the KV accounting is checked."""
    give_back_after: float = 15.0
    """Seconds of idleness after which KV memory that is spare goes back to the system, where it was taken on demand."""
    give_back_unused_after: float = 300.0
    """Seconds after which KV memory that no request has used is given back although others run."""
    kept_kv_bytes: int | None = None
    """Memory that free KV blocks keep all the same; None: as much as the weights take, at least 256 MiB."""
    scheduling_policy: Literal["fcfs", "priority", "fair"] = "fcfs"
    """Order of admission, and the reverse order of preemption. "fair": the tenant that was served least comes first."""
    target_itl: float | None = None
    """Seconds a step may take while streams run; None: 1.75 times what their decodes alone take; 0: prompts are
    computed as fast as possible, whatever the streams bear."""
    prefix_caching: bool = True
    """Find KV of earlier requests by the prefix of a prompt."""
    max_in_flight: int | None = None
    """Steps submitted before the first of them has answered: 1 waits for each, 2 overlaps the host's work with the
    executor's. At most what the executor can take. None: that, but 1 where the executor computes on the host's CPU."""
    num_speculative_tokens: int = 0
    """Most drafts of a sequence in a step; 0: none."""
    speculative_method: Literal["ngram", "draft_model", "mtp"] = "ngram"
    """Where drafts come from: what followed the same tokens before, the executor's draft model, or its model's MTP head."""
    speculative_if_usable: bool = False
    """Of "draft_model" and "mtp": whether an executor that has neither is served without drafts, which is then no error."""
    prompt_lookup_max: int = 3
    """Tokens of the longest run that is looked for, of "ngram", and `prompt_lookup_min` of the shortest."""
    prompt_lookup_min: int = 1
    max_loras: int = 0
    """Distinct LoRA adapters that a step may have, and that the executor holds; 0: none."""
