"""For vLLM's `--logits-processors`: a request with `vllm_xargs: {"poison": 1}` ends the process that computes it.

vLLM imports this file in its own environment, by its plain name.
"""

from __future__ import annotations

import os
from typing import Any

from vllm.v1.sample.logits_processor import LogitsProcessor


class Poison(LogitsProcessor):  # type: ignore[misc]
    """Changes no logits."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        pass

    def apply(self, logits: Any) -> Any:
        """As they are, [rows, vocabulary]."""
        return logits

    def is_argmax_invariant(self) -> bool:
        """It changes nothing, but it has to be called."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """End the process when a marked request joins the batch."""
        for _, params, *_ in batch_update.added if batch_update else ():
            if (params.extra_args or {}).get("poison"):
                os._exit(11)
