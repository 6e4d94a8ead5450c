"""`benchmarks.encoders`: lengths of texts, clients that count what fails, and what is made of the rounds."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from benchmarks.encoders.__main__ import _summary
from benchmarks.encoders.clients import run
from benchmarks.encoders.texts import texts, tokenizer


@pytest.fixture
def model(tmp_path: Path) -> Path:
    words = ["[UNK]", "[CLS]", "[SEP]", *[f"word{letter}" for letter in "abcdefghij"], "no", "##abc", "w1x"]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        "[CLS] $0 [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    made.enable_truncation(8)
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_texts_have_the_lengths_that_are_asked_for(model: Path) -> None:
    found = texts(model, 300, (10, 40))
    lengths = [len(one.ids) for one in tokenizer(model).encode_batch(found)]
    assert (min(lengths), max(lengths)) == (10, 40) and len(set(lengths)) == 31
    assert found == texts(model, 300, (10, 40)) != texts(model, 300, (10, 40), seed=8)


class _Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked: list[str]

    def do_POST(self) -> None:
        text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
        self.asked.append(text)
        body = b"x" * 70_000
        self.send_response(500 if text == "bad" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    _Answers.asked = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_clients_send_every_text_and_count_failures(url: str) -> None:
    report = run(url, ["one", "two", "bad"], 3, 0.6, beside=True)
    assert set(_Answers.asked) == {"one", "two", "bad", "a short text of ten words beside all of these"}
    calls, errors, short = report["calls"], report["errors"], report["short_ms"]
    assert isinstance(calls, int) and isinstance(errors, int) and isinstance(short, list)
    assert 0 < errors < calls and abs(3 * errors - calls) < 0.2 * calls + 9
    assert 1 <= len(short) <= 13 and all(one > 0 for one in short)


def test_the_ratio_is_to_the_best_form_of_the_best_peer() -> None:
    ours = dict.fromkeys(
        ("texts_s", "short_p99_ms", "step_ms", "short_p99_steps", "call_of_64_ms", "cosine"), 1.0
    )

    def lines(*rates: float) -> list[dict[str, object]]:
        return [{"form": "f", "texts_s": rate} for rate in rates]

    rounds = [
        {"cohort": {**ours, "texts_s": rate}, "torch": lines(5.0, 9.0), "openvino": lines(own, 2.0)}
        for rate, own in ((30.0, 10.0), (24.0, 12.0), (18.0, 14.0))
    ]
    found = _summary(rounds, ["torch", "openvino"])
    assert (found["texts_s"], found["peers"], found["ratio"]) == (24.0, {"torch": 9.0, "openvino": 12.0}, 2.0)
