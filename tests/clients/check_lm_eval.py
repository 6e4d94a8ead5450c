"""lm-eval on tasks and data of our own: log-likelihoods are those of transformers, and its other two ways work too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI
from lm_eval.tasks import TaskManager

HERE = Path(__file__).parent
TASKS = str(HERE / "data/lm_eval")
TOLERANCE = 1e-3
"""Nats, over a whole continuation in fp32."""
LONG = 512
"""Tokens. Beyond, transformers' own angles are no measure of 1e-3: see reference.py."""


@pytest.fixture(autouse=True)
def environment(api_key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the key from there, and the tasks name their data from the checkout's root."""
    monkeypatch.setenv("OPENAI_API_KEY", api_key)
    monkeypatch.chdir(HERE.parents[1])


class Recording(LocalCompletionsAPI):
    """Keeps which ids it asked about, and what it was told."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pairs: list[tuple[list[int], list[int]]] = []
        self.told: list[tuple[float, bool]] = []

    def _loglikelihood_tokens(self, requests: Any, **kwargs: Any) -> list[tuple[float, bool]]:
        told = super()._loglikelihood_tokens(requests, **kwargs)
        self.pairs += [(context, continuation) for _, context, continuation in requests]
        self.told += told
        return told


def evaluate(lm: Any, *tasks: str, **more: Any) -> dict[str, Any]:
    """Results and samples by task."""
    manager = TaskManager(include_path=TASKS, include_defaults=False)
    return lm_eval.simple_evaluate(lm, tasks=list(tasks), task_manager=manager, bootstrap_iters=0, **more)


def reference(model_dir: str, pairs: list[tuple[list[int], list[int]]]) -> list[tuple[float, float, bool]]:
    """Of each pair: transformers' log-likelihood, a more exact one, and whether it is greedy."""
    command = [os.environ["CLIENT_MAIN_PYTHON"], "-m", "tests.clients.reference", model_dir]
    done = subprocess.run(command, input=json.dumps(pairs), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "how",
    [
        {"tokenizer_backend": "remote"},
        {"tokenizer_backend": "huggingface", "num_concurrent": 4, "batch_size": 3},
        {"tokenizer_backend": "huggingface", "batch_size": 8, "tokenized_requests": False},
    ],
    ids=["remote", "concurrent", "as-text"],
)
def test_loglikelihoods(url: str, api_key: str, model: str, model_dir: str, how: dict[str, Any]) -> None:
    tokenizer = {} if how["tokenizer_backend"] == "remote" else {"tokenizer": model_dir}
    lm = Recording(
        base_url=f"{url}/v1/completions",
        model=model,
        auth_token=api_key,
        max_length=2048,
        max_retries=1,
        **tokenizer,
        **how,
    )
    # It renders the chat's form itself, if it has the tokenizer and may send ids.
    chat = bool(tokenizer) and how.get("tokenized_requests", True)
    results = evaluate(lm, "cohort_capitals", apply_chat_template=chat)["results"]
    results |= evaluate(lm, "cohort_text")["results"]
    assert len(lm.told) == len(lm.pairs) == 12 * 4 + 6 + 1, "a text is longer than the context"
    long = 0
    for told, (plain, exact, greedy), (_, continuation) in zip(
        lm.told, reference(model_dir, lm.pairs), lm.pairs, strict=True
    ):
        assert told == (pytest.approx(exact, abs=TOLERANCE), greedy)
        if len(continuation) <= LONG:
            assert told[0] == pytest.approx(plain, abs=TOLERANCE)
        else:
            long += 1
    assert long == 2
    assert results["cohort_text"]["bits_per_byte,none"] > 0
    if chat:  # the model knows them when it is asked as it was taught
        assert results["cohort_capitals"]["acc,none"] == 1


def test_generation(url: str, api_key: str, model: str, model_dir: str) -> None:
    """By ids: in the form of a chat, which the model was taught, and without it, with the server's tokenizer and with its own."""
    common: Any = {"base_url": f"{url}/v1/completions", "model": model, "max_retries": 1, "num_concurrent": 4}
    own = LocalCompletionsAPI(tokenizer_backend="huggingface", tokenizer=model_dir, **common)
    remote = LocalCompletionsAPI(tokenizer_backend="remote", auth_token=api_key, **common)
    results = evaluate(own, "cohort_counting", apply_chat_template=True)["results"]
    assert results["cohort_counting"]["exact_match,none"] == 1
    # What is not in the form of a chat it may take for ended: some text is asked for.
    longer = {"gen_kwargs": {"min_tokens": 6}}
    one, other = (
        evaluate(lm, "cohort_counting", **longer)["samples"]["cohort_counting"] for lm in (own, remote)
    )
    assert [sample["resps"] for sample in one] == [sample["resps"] for sample in other]
    assert all(sample["resps"][0][0] for sample in one)


def test_generation_in_chats(url: str, model: str) -> None:
    lm = LocalChatCompletion(
        base_url=f"{url}/v1/chat/completions",
        model=model,
        num_concurrent=4,
        max_retries=1,
        eos_string="<|im_end|>",
    )
    results = evaluate(lm, "cohort_counting", apply_chat_template=True)["results"]
    assert results["cohort_counting"]["exact_match,none"] == 1


def test_the_command(url: str, api_key: str, model: str, tmp_path: Path) -> None:
    """As its users start it; the tokenizer is found out by itself."""
    arguments = f"model={model},base_url={url}/v1/completions,num_concurrent=2,max_retries=1,auth_token={api_key},max_length=2048"
    command = [
        str(Path(sys.executable).with_name("lm_eval")), "run", "--model", "local-completions", "--model_args", arguments,
        "--tasks", "cohort_capitals,cohort_text,cohort_counting", "--include_path", TASKS, "--output_path", str(tmp_path),
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    assert "Using remote tokenizer" in done.stdout
    [written] = tmp_path.rglob("results_*.json")
    results = json.loads(written.read_text())["results"]
    assert results.keys() == {"cohort_capitals", "cohort_text", "cohort_counting"}
