"""The default model as a person meets it: fetched, served without a name, asked twenty plain questions.

`make test-external ONLY=real`. The file stays in the user's cache, where the first run puts it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from server.model_files import default_model
from tests.e2e.server_process import ServerProcess

pytestmark = [pytest.mark.external, pytest.mark.timeout(600)]

COHORT = str(Path(sys.executable).with_name("cohort"))
MOST_REPEATS = 2
PROMPTS = (
    "What is the capital of France?", "Tell me a short story about a fox.", "How do I boil an egg?",
    "Write a haiku about autumn.", "Explain photosynthesis to a child.", "What is the meaning of life?",
    "Give me three tips for learning to cook.", "Who wrote Hamlet?", "What should I pack for a trip to Norway in winter?",
    "Write a polite email asking for a day off.", "What is 12 times 9?", "Why is the sky blue?",
    "List five animals that live in the sea.", "How does a bicycle stay upright?", "Summarize the plot of Romeo and Juliet.",
    "What is a computer?", "Tell me about the history of Rome.", "How can I sleep better?",
    "What is the difference between a frog and a toad?", "Write a Python function that adds two numbers.",
)  # fmt: skip


def repeats(items: Sequence[str]) -> int:
    """How often the most frequent run of eight occurs."""
    return max(Counter(tuple(items[i : i + 8]) for i in range(len(items) - 7)).values(), default=0)


@pytest.fixture(scope="module")
def fetched_smollm2() -> Path:
    done = subprocess.run([COHORT, "fetch-default"], capture_output=True, text=True, timeout=500, check=True)
    path = Path(done.stdout.splitlines()[-1].partition(": ")[2])
    assert path == default_model.find()
    return path


@pytest.fixture(scope="module")
def server(fetched_smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess([], tmp_path_factory.mktemp("default"), env={"HF_HUB_OFFLINE": "1"}) as running:
        yield running


def test_the_file_of_smollm2_is_the_pinned_one(fetched_smollm2: Path) -> None:
    assert hashlib.sha256(fetched_smollm2.read_bytes()).hexdigest() == default_model.SHA256
    assert fetched_smollm2.stat().st_size == default_model.SIZE


def test_smollm2_introduces_itself(server: ServerProcess) -> None:
    assert [one["id"] for one in server.get("/v1/models").json()["data"]] == ["SmolLM2-135M-Instruct"]
    text = server.log()
    assert "Q4_1 weights" in text and default_model.TITLE in text and "next: cohort serve " in text
    assert "sampling='temperature 0.7" in text


def test_smollm2_knows_a_capital(server: ServerProcess) -> None:
    body = {
        "messages": [{"role": "user", "content": "What is the capital of Peru?"}],
        "temperature": 0,
        "max_tokens": 12,
    }
    assert "Lima" in server.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"]


def test_smollm2_does_not_repeat_itself(server: ServerProcess) -> None:
    """At default sampling no answer has the same eight words three times, nor the same eight tokens."""

    def ask(prompt: str) -> dict[str, Any]:
        body = {
            "messages": [{"role": "user", "content": prompt}],
            "seed": 1,
            "max_tokens": 1024,
            "logprobs": True,
        }
        return dict(server.post("/v1/chat/completions", body, timeout=500).json()["choices"][0])

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        answers = list(pool.map(ask, PROMPTS))
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        text = answer["message"]["content"]
        tokens = [one["token"] for one in answer["logprobs"]["content"]]
        most = max(repeats(text.split()), repeats(tokens))
        print(f"{prompt[:50]:<50} {len(tokens):>5} tokens, repeats {most}")
        assert most <= MOST_REPEATS, f"{prompt}\n{text}"
    assert sum(answer["finish_reason"] == "stop" for answer in answers) >= 18


def test_the_demo_of_smollm2_loses_nothing(fetched_smollm2: Path, tmp_path: Path) -> None:
    env = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(
        [COHORT, "demo"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "32 of 32 equal" in done.stdout and "SmolLM2-135M-Instruct" in done.stdout
