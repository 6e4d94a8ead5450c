"""Bad requests against a real server, while another client's stream goes on and must not change by a byte."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import pytest

from tests.e2e.server_process import ServerProcess

VICTIM = {
    "prompt": "The victim",
    "max_tokens": 300,
    "temperature": 1.0,
    "seed": 5,
    "ignore_eos": True,
    "stream": True,
}
COMPLETION = "/v1/completions"
BAD: list[tuple[str, Any, int, str | None]] = [
    (COMPLETION, {"prompt": ""}, 400, "prompt"),
    (COMPLETION, {"prompt": []}, 400, "prompt"),
    (COMPLETION, {"prompt": [258]}, 400, "prompt"),
    (COMPLETION, {"prompt": [-1]}, 400, "prompt.0"),
    (COMPLETION, {"prompt": "x" * 5000}, 400, "prompt"),
    (COMPLETION, {"prompt": "x", "max_tokens": 100000}, 400, "max_tokens"),
    (COMPLETION, {"prompt": "x", "stop_token_ids": [9999]}, 400, "stop_token_ids"),
    (COMPLETION, {"prompt": "x", "n": 100000}, 400, "n"),
    (COMPLETION, {"prompt": "x", "model": "gpt-5"}, 404, "model"),
    (COMPLETION, {"prompt": "x", "logit_bias": {"258": 1}}, 400, "logit_bias"),
    (COMPLETION, b"{", 400, None),
    (COMPLETION, b"\xff", 400, None),
    (COMPLETION, b'{"prompt": "\\ud800"}', 400, None),
    (COMPLETION, b'{"prompt": ' + b" " * 17_000_000 + b'"x"}', 413, None),
    ("/v1/chat/completions", {"messages": []}, 400, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 100_000}]}, 400, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, None),
    ("/detokenize", {"tokens": [300]}, 400, "tokens"),
    ("/nope", {}, 404, None),
]


@pytest.mark.long
def test_bad_requests_touch_nobody_else(echo_server: ServerProcess) -> None:
    undisturbed = _text_of(echo_server)
    disturbed: list[str] = []
    victim = threading.Thread(target=lambda: disturbed.append(_text_of(echo_server)))
    victim.start()
    with httpx.Client(base_url=echo_server.url, timeout=30) as client:
        for path, body, status, param in BAD:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            response = client.post(path, content=content, headers={"Content-Type": "application/json"})
            error = response.json()["error"]
            assert response.status_code == status, (path, response.text)
            assert set(error) == {"message", "type", "param", "code"}
            if param is not None:
                assert error["param"] == param, error
            assert response.headers["x-request-id"]
    victim.join(60)
    assert disturbed == [undisturbed]
    assert echo_server.metric("cohort_requests_running") == 0


def _text_of(server: ServerProcess) -> str:
    text = ""
    with httpx.stream("POST", f"{server.url}/v1/completions", json=VICTIM, timeout=60) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
    return text


def test_keys(tokenizer_dir: Any, tmp_path: Any) -> None:
    from tests.e2e.conftest import ECHO

    env = {"COHORT_API_KEY": "one,two", "COHORT_METRICS_KEY": "three"}
    server = ServerProcess([str(tokenizer_dir), *ECHO], tmp_path, env=env)
    with server:
        assert server.get("/health").status_code == 200
        assert server.get("/metrics").status_code == 401
        assert server.get("/v1/models").status_code == 401
        headers = {"Authorization": "Bearer two"}
        assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200
        assert "Bearer two" not in server.output() + server.log()
