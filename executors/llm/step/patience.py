"""How long a step may occupy a device before it counts as hung, from the pace that was measured at the start.

    10 x (seconds of its tokens + seconds of a decode step) x (1 + longest context / 4,096)

The pace was measured with short contexts. Attention over a context of some thousand tokens takes as long as everything else of
a step, so a step at the end of a long prompt is allowed many times more. Work of the host (kernels that are compiled, graphs
that are captured, grammars) is not part of it: `PendingSteps` measures from the launch on.
"""

from __future__ import annotations

from executors.contract.batch import UnifiedBatch
from executors.contract.status import Pace

_FACTOR = 10.0
"""Allowed multiple of the time expected: another process may use the device, too, and its clock may be low."""
_CONTEXT = 4096
"""Tokens of context over which attention takes as long as the rest of a step, or more."""


def patience(pace: Pace, batch: UnifiedBatch) -> float:
    """Return the seconds after which a step counts as hung; `PendingSteps` takes no less than its own least time."""
    if not len(batch):
        return 0.0
    expected = batch.total_q_tokens() * pace.prompt_token + pace.decode_step(len(batch))
    context = int((batch.pos_offsets + batch.num_q_tokens).max())
    return _FACTOR * expected * (1 + context / _CONTEXT)
