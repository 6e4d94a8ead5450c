"""The embedded model's skills over HTTP, no sampling parameters sent: a short form of `make tiny-eval`.

25 prompts a row tell a broken template, tokenizer or sampler from a working one; whether a row reaches 95% takes the 200 of
the long form, whose last table is in README.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from executors.tiny import plain_prompts
from executors.tiny.evaluate import ask_server, questions
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.e2e

FLOOR = 0.8
"""Three standard deviations of 25 prompts below the weakest row (off-topic, 96.1% of 2,000) is 0.84, and one prompt less; a model
that is asked in another template than it was trained with scores near 0."""


def test_no_skill_is_lost(tiny_server: ServerProcess) -> None:
    shares = {}
    for skill, samples in questions(25).items():
        outcomes = ask_server(tiny_server.url, samples)
        shares[skill] = sum(outcome.correct for outcome in outcomes) / len(outcomes)
    assert min(shares.values()) >= FLOOR, shares
    assert sum(shares.values()) / len(shares) >= 0.94, shares


@pytest.mark.long
def test_hand_written_prompts(tiny_server: ServerProcess) -> None:
    """Of 480 98.8% were right when the shipped weights were measured, of 360 others 95.6%, of 360 that nobody has read 91.9%."""
    floors = {"plain_prompts.jsonl": 0.93, "plain_prompts_2.jsonl": 0.89, "plain_prompts_3.jsonl": 0.85}
    for name, least in floors.items():
        samples = plain_prompts.load(Path(__file__).parent / "data" / name)
        outcomes = ask_server(tiny_server.url, samples, judge=plain_prompts.judge)
        assert sum(outcome.correct for outcome in outcomes) / len(outcomes) >= least, name
