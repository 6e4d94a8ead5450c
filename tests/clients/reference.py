"""What transformers says: `python -m tests.clients.reference MODEL_DIR < PAIRS`, in the main environment.

PAIRS is a JSON list of [context ids, continuation ids]. Prints, for each, [plain, exact, greedy]: the log-likelihood of the
continuation in nats as transformers computes it in fp32, the same with weights, sums and angles in float64, and whether the
continuation is what greedy decoding would say. One pair at a time, each in one forward.

The two differ where texts are long: transformers multiplies a position with its frequency in float32, which at position 2,000
is 1e-4 radians off, also in a model of float64. Over 2,046 tokens of cohort-tiny that was 1.2e-3 nats; ours was 5e-4 off.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import torch
from torch import nn
from transformers import AutoModelForCausalLM

Pair = tuple[list[int], list[int]]


class ExactAngles(nn.Module):
    """In place of a model's `rotary_emb`: plain rotary embedding, computed in float64."""

    def __init__(self, theta: float, head_dim: int) -> None:
        super().__init__()
        self._frequencies = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin, [batch, tokens, head_dim] each."""
        angles = position_ids[..., None].double() * self._frequencies
        both = torch.cat((angles, angles), -1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)


def load(model_dir: str, dtype: torch.dtype) -> nn.Module:
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype, attn_implementation="eager").eval()


def loglikelihoods(model: nn.Module, pairs: list[Pair]) -> Iterator[tuple[float, bool]]:
    for context, continuation in pairs:
        # The last token is only predicted; what is said at each place is about the next.
        ids = torch.tensor([(context + continuation)[:-1]])
        wanted = torch.tensor(continuation)
        with torch.inference_mode():
            said = model(ids).logits[0, -len(continuation) :].log_softmax(-1)
        chosen = said.gather(1, wanted[:, None])[:, 0]
        yield chosen.double().sum().item(), bool((said.argmax(-1) == wanted).all())


def main() -> None:
    model_dir, pairs = sys.argv[1], json.load(sys.stdin)
    plain, exact = load(model_dir, torch.float32), load(model_dir, torch.float64)
    config = exact.config
    exact.model.rotary_emb = ExactAngles(config.rope_parameters["rope_theta"], config.head_dim)
    both = zip(loglikelihoods(plain, pairs), loglikelihoods(exact, pairs), strict=True)
    print(json.dumps([[one, other, greedy] for (one, _), (other, greedy) in both]))


if __name__ == "__main__":
    main()
