"""Trained models served in float32 beside transformers: log-probabilities of prompts and of answers, and greedy text.

Random weights hide faults that trained ones show: logits of theirs are large, a few channels are a hundred times larger
than the others, and the tokenizers are those that people use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server_process import ServerProcess
from tools.real_models import directory

pytestmark = [pytest.mark.external, pytest.mark.timeout(600)]

ANSWER = 16
"""Tokens."""
LONG = 700
"""Tokens of the last prompt."""
TOLERANCE = 1e-3
"""Nats. 1e-4 is reached."""
_TALE = (
    "Once upon a time, in a town by the sea, there lived a watchmaker who never knew what time it was. Every morning he "
    "wound forty clocks, opened the shutters and asked the baker. One winter the baker's own clock stopped. "
)
PROMPTS = {
    "prose": "The lighthouse had been dark for eleven years when the letter came. Its keeper",
    "code": 'def median(values: list[float]) -> float:\n    """The middle of sorted values."""\n    ordered =',
    "japanese": "吾輩は猫である。名前はまだ無い。どこで生れたか",
    "emoji": "Weather today: 🌧️☔ then 🌤️, and tonight 🌕✨. Family: 👩‍👩‍👧‍👦 🇳🇴",
    "json": '{"name": "Łódź", "population": 672185, "rivers": ["Ner", "Łódka"], "area_km2":',
    "scripts": "Съешь ещё этих булок; ψυχοφθόρα βδελυγμία; نص حكيم; 敏捷的棕色狐狸",
    "sums": "17 + 25 = 42\n38 + 44 = 82\n\t 59 + 16 =",
    "long": _TALE * 20,
}


@dataclass(frozen=True)
class Expected:
    """Of a prompt: ids, log-probabilities of ids[1:], greedy ids with theirs, and their text."""

    ids: list[int]
    prompt: list[float]
    answer: list[int]
    chosen: list[float]
    text: str


class Transformers:
    """The checkpoint in float32 by transformers, its tokenizer included."""

    def __init__(self, path: Path) -> None:
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(path)
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self._model = model.eval()

    def expected(self, text: str) -> Expected:
        import torch

        ids = list(self._tokenizer(text)["input_ids"])[:LONG]
        with torch.inference_mode():
            output = self._model(torch.tensor([ids]), use_cache=True)
            rows = output.logits[0].log_softmax(-1)
            prompt = rows[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].tolist()
            answer: list[int] = []
            chosen: list[float] = []
            while True:
                best = rows[-1].max(-1)
                answer.append(int(best.indices))
                chosen.append(float(best.values))
                if len(answer) == ANSWER:
                    return Expected(ids, prompt, answer, chosen, self._tokenizer.decode(answer))
                past = output.past_key_values
                output = self._model(torch.tensor([answer[-1:]]), past_key_values=past, use_cache=True)
                rows = output.logits[0].log_softmax(-1)


def differences(
    server: ServerProcess, prompt: str | Sequence[int], expected: Expected
) -> tuple[float, float]:
    """Largest difference of a prompt's log-probability, and of an answer's; the text is asserted to be equal."""
    body = {
        "prompt": prompt, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True, "prompt_logprobs": 0, "logprobs": 0,
        "skip_special_tokens": False, "spaces_between_special_tokens": False,
    }  # fmt: skip
    response = server.post("/v1/completions", body, timeout=300)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    assert choice["text"] == expected.text
    first, *rest = choice["prompt_logprobs"]
    assert first is None
    own = [entries[str(token)]["logprob"] for token, entries in zip(expected.ids[1:], rest, strict=True)]
    return _largest(own, expected.prompt), _largest(choice["logprobs"]["token_logprobs"], expected.chosen)


def _largest(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The server starts at the same time: two threads of torch beside it wait for each other and take five times as long."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_float32_equals_transformers(name: str, tmp_path: Path) -> None:
    """Eight prompts at once as text, of which the long one is in ids: it is cut."""
    path = directory(name)
    args = [str(path), "--dtype", "float32", "--max-model-len", "1024", "--kv-cache-memory-bytes", "512MiB"]
    args += ["--max-num-batched-tokens", "256"]
    server = ServerProcess(args, tmp_path, ready_within=180)  # starts while transformers computes
    try:
        reference = Transformers(path)
        expected = {kind: reference.expected(text) for kind, text in PROMPTS.items()}
    except BaseException:
        server.kill()
        raise
    assert len(expected["long"].ids) == LONG
    # Of a directory that was made wrongly both sides would tell the same: a trained model foresees what repeats itself.
    assert sum(expected["long"].prompt) > -1.0 * LONG
    with server, ThreadPoolExecutor(len(PROMPTS)) as pool:
        found = dict(
            zip(
                PROMPTS,
                pool.map(
                    lambda kind: differences(
                        server, expected[kind].ids if kind == "long" else PROMPTS[kind], expected[kind]
                    ),
                    PROMPTS,
                ),
                strict=True,
            )
        )
    print(f"{name}: " + ", ".join(f"{kind} {a:.1e} {b:.1e}" for kind, (a, b) in found.items()))
    assert max(map(max, found.values())) < TOLERANCE, found
