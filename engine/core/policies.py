"""`Policies`: the exchangeable decisions of the scheduler, and their choice by a configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.config import EngineConfig
from engine.policies.budget import BudgetPolicy, FixedBudget, LatencyBudget
from engine.policies.draft_length import DraftLengths
from engine.policies.drafter import Drafter, ModelDrafter, NgramDrafter
from engine.policies.victim import VICTIM_POLICIES, VictimPolicy, youngest


@dataclass(slots=True)
class Policies:
    """See `engine/policies`. The policy of the queue is `WaitingQueue.policy`. A `Policies` serves one scheduler."""

    budget: BudgetPolicy = field(default_factory=FixedBudget)
    victim: VictimPolicy = youngest
    drafter: Drafter | None = None
    lengths: DraftLengths = field(default_factory=lambda: DraftLengths(32, False))

    @staticmethod
    def of(config: EngineConfig) -> Policies:
        """Return the policies that the configuration names."""
        drafts, from_model = config.num_speculative_tokens, config.speculative_method != "ngram"
        drafter: Drafter | None = None
        if drafts:
            ngrams = NgramDrafter(drafts, config.prompt_lookup_max, config.prompt_lookup_min)
            drafter = ModelDrafter() if from_model else ngrams
        return Policies(
            budget=FixedBudget() if config.target_itl == 0 else LatencyBudget(config.target_itl),
            victim=VICTIM_POLICIES[config.scheduling_policy],
            drafter=drafter,
            lengths=DraftLengths(drafts, from_model),
        )
