"""The description of the API turned into requests, good and bad, by schemathesis: nothing fails inside, nothing is answered
that is not described, and a stream that runs beside it does not change.

The short form runs with the other tests; `make test-all ARGS='--full tests/e2e/test_fuzz_schema.py'` runs the long one.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.e2e.conftest import ECHO
from tests.e2e.server_process import ServerProcess
from tests.server.api_schema import check_events, check_lines, operation_of

pytestmark = pytest.mark.long

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
MOST_TOKENS = 8
"""Generated per choice: the fuzzer is after answers, and has a million ways to ask for long ones."""
PATIENCE = 20.0
"""Seconds. Whoever asks for 128 choices of 100 prompts waits for them."""

Outcome = tuple[str, int]


class Fuzzer:
    """Sends what the schema allows, and what it does not, one request at a time."""

    def __init__(self, url: str, key: str) -> None:
        self.answers: Counter[Outcome] = Counter()
        self.unanswered = 0
        self._url = url
        self._session = requests.Session()
        self._authorization = f"Bearer {key}"
        headers = {"Authorization": self._authorization}
        document = httpx.get(f"{url}/openapi.json", headers=headers).json()
        self._name = httpx.get(f"{url}/v1/models", headers=headers).json()["data"][0]["id"]
        del document["security"], document["components"]["securitySchemes"]  # keys have tests of their own
        self._schema: Any = schemathesis.openapi.from_dict(document)

    def run(self, examples: int, first_seed: int = 0) -> None:
        """So many requests to each operation with a body, half of them bad, and a few to the others."""
        for found in self._schema.get_all_operations():
            operation = found.ok()
            for mode in GenerationMode:
                has_body = len(operation.body) > 0
                if has_body or (mode is GenerationMode.POSITIVE):
                    self._run_one(operation, mode, examples if has_body else 3, first_seed)

    def _run_one(self, operation: Any, mode: GenerationMode, examples: int, first_seed: int) -> None:
        @seed(first_seed)
        @settings(
            max_examples=examples,
            database=None,
            deadline=None,
            phases=(Phase.generate,),  # a request that failed once may not fail again: it is shown as it was
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode), number=st.integers(0, 2**32))
        def send(case: Case, number: int) -> None:
            if isinstance(case.body, dict):
                case.body = dict(case.body)  # the strategy keeps what it has drawn
                if mode is GenerationMode.POSITIVE:
                    named = "messages" in case.path or case.path.startswith("/api/")
                    _thin_out(case.body, random.Random(number), self._name if named else None)
            self._send(case)

        send()

    def _send(self, case: Case) -> None:
        body: Any = case.body
        if (
            isinstance(body, dict)
            and case.path.endswith("messages")
            and isinstance(body.get("max_tokens"), int)
        ):
            body["max_tokens"] = min(body["max_tokens"], MOST_TOKENS)
        if isinstance(body, dict) and case.path.endswith("responses"):
            asked = body.get("max_output_tokens", MOST_TOKENS)
            body["max_output_tokens"] = min(asked, MOST_TOKENS) if isinstance(asked, int) else asked
        if isinstance(body, dict) and case.path in ("/api/chat", "/api/generate"):
            options = body.get("options") or {}
            if isinstance(options, dict) and isinstance(options.get("num_predict") or 0, int | float):
                body["options"] = {**options, "num_predict": MOST_TOKENS}
        if isinstance(body, dict) and case.path.endswith("completions"):
            for name in ("max_tokens", "max_completion_tokens", "min_tokens"):
                if isinstance(value := body.get(name), int) and value > MOST_TOKENS:
                    body[name] = MOST_TOKENS
            if "max_completion_tokens" not in body:
                body.setdefault("max_tokens", MOST_TOKENS)
        try:
            # Not `case.call`, which reads the beginning of a stream only.
            request = case.as_transport_kwargs(base_url=self._url)
            request["headers"]["Authorization"] = self._authorization
            response = self._session.request(**request, timeout=PATIENCE)
        except requests.exceptions.Timeout:
            self.unanswered += 1
            return
        self.answers[(case.path, response.status_code)] += 1
        assert response.status_code != 503, response.text
        # Schemathesis does not count 413 among the refusals.
        too_large = [negative_data_rejection] if response.status_code == 413 else []
        case.validate_response(response, checks=CHECKS, excluded_checks=too_large)
        if response.headers["content-type"].startswith("text/event-stream"):
            chunk = operation_of(case.method, case.path).chunk
            assert chunk is not None
            check_events(chunk, response.text)
        if response.headers["content-type"].startswith("application/x-ndjson"):
            check_lines(operation_of(case.method, case.path), response.text)


def _thin_out(body: dict[str, Any], chance: random.Random, name: str | None) -> None:
    """Leave a few of the optional fields: of two dozen at once, two contradict each other nearly always. The name of a model
    is right half of the time at least: `name` where it is required, none elsewhere."""
    known_ids = chance.random() < 0.7
    for field, value in body.items():
        if isinstance(value, list):
            known = known_ids and field in ("prompt", "input", "tokens")
            body[field] = _integers(value, 200 if known else 2**31)
    if "stream_options" in body:
        body["stream"] = True
    required = {"messages", "prompt", "input", "tokens", "stream"} | (
        {"model", "max_tokens"} if name else set()
    )
    optional = sorted(body.keys() - required)
    for field in chance.sample(optional, max(0, len(optional) - chance.randint(0, 4))):
        del body[field]
    if chance.random() < 0.5:
        body.pop("model", None)
        if name is not None:
            body["model"] = name


def _integers(value: Any, end: int) -> Any:
    """A list with its integers, those of lists in it too, less than `end`. JSON Schema takes 1.0 for an integer; so does
    the server, but not in these lists."""
    if isinstance(value, list):
        return [_integers(one, end) for one in value]
    whole = type(value) is int or (isinstance(value, float) and value.is_integer())
    return int(value) % end if whole else value


class Victim:
    """The same seeded stream again and again, in a thread; what it was at first it must always be."""

    def __init__(self, url: str, key: str, body: dict[str, Any]) -> None:
        self.rounds = 0
        self.faults: list[str] = []
        self._client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60)
        self._body = {**body, "stream": True, "return_token_ids": True}
        self._expected = self._ask()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _ask(self) -> tuple[str, list[int], str | None]:
        text, ids, finish = "", [], None
        with self._client.stream("POST", "/v1/completions", json=self._body) as response:
            assert response.status_code == 200
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                [choice] = json.loads(line.removeprefix("data: "))["choices"]
                text += choice["text"]
                ids += choice.get("token_ids", [])
                finish = choice["finish_reason"] or finish
        return text, ids, finish

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if (found := self._ask()) != self._expected:
                    self.faults.append(f"{found} instead of {self._expected}")
                self.rounds += 1
        except Exception as error:
            self.faults.append(repr(error))

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()
            self._client.close()
        assert not self.faults, self.faults[:3]
        text, ids, finish = self._expected
        assert self.rounds > 0 and len(ids) > 20 and text and finish is not None


KEY = "fuzz"
VICTIM = {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 1.0, "seed": 17, "ignore_eos": True}
Serve = Callable[[str], ServerProcess]


@pytest.fixture
def serve(tokenizer_dir: Path, tmp_path: Path) -> Serve:
    arguments = {"echo": [str(tokenizer_dir), *ECHO], "tiny": ["cohort-tiny", "--deterministic"]}
    return lambda name: ServerProcess([*arguments[name], "--api-key", KEY], tmp_path)


def fuzz(server: ServerProcess, examples: int, first_seed: int = 0) -> Fuzzer:
    fuzzer, victim = Fuzzer(server.url, KEY), Victim(server.url, KEY, VICTIM)
    with victim.running():
        fuzzer.run(examples, first_seed)
    assert httpx.get(f"{server.url}/ready").status_code == 200
    return fuzzer


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", ["echo", "tiny"])
def test_short(serve: Serve, name: str) -> None:
    with serve(name) as server:
        fuzzer = fuzz(server, examples=3)
    statuses = Counter(status for _, status in fuzzer.answers.elements())
    assert statuses[200] > 30 and statuses[400] > 20, statuses
    assert fuzzer.unanswered <= 3


@pytest.mark.long(full=True)
@pytest.mark.timeout(600)
def test_every_limit_and_both_sides_of_it(serve: Serve, tmp_path: Path) -> None:
    """Schemathesis' own list of cases for each schema: the least, the most, one more, other types, nothing."""
    checks = ",".join(check.__name__ for check in [*CHECKS, ignored_auth, unsupported_method])
    with serve("echo") as server:
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.url}/openapi.json",
                "--header", f"Authorization: Bearer {KEY}", "--phases", "coverage", "--checks", checks, "--no-color",
            ],
            capture_output=True, text=True, cwd=tmp_path,
        )  # fmt: skip
    print(done.stdout[-1500:])
    assert done.returncode == 0, done.stdout


@pytest.mark.long(full=True)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["echo", "tiny"])
def test_long(serve: Serve, name: str) -> None:
    begun = time.monotonic()
    with serve(name) as server:
        fuzzer = fuzz(server, examples=200, first_seed=1)
    print(dict(fuzzer.answers), f"unanswered: {fuzzer.unanswered}", f"{time.monotonic() - begun:.0f} s")
    assert sum(fuzzer.answers.values()) > 1800
