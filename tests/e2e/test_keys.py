"""Keys of real servers: revoked while a stream runs; an admin key that a terminal shows and a log never has."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import httpx
import pytest

from tests.e2e.server_process import ServerProcess
from tests.e2e.terminal import Terminal

pytestmark = pytest.mark.long


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_a_revoked_key_and_the_stream_that_it_began(tmp_path: Path) -> None:
    """The key fails on the next request; the stream goes on to its end, under the key's name."""
    file = tmp_path / "keys"
    file.write_text("alice key-a\nbob key-b\n")
    args = [
        "--executor",
        "echo",
        "--executor-option",
        "step_delay_ms=20",
        "--api-key-file",
        str(file),
        "--lora-root",
        str(tmp_path),
    ]
    body = {"prompt": "a b c", "max_tokens": 60, "stream": True, "ignore_eos": True}
    with ServerProcess(args, tmp_path) as server:
        url, lines = f"{server.url}/v1/completions", []
        with httpx.stream("POST", url, json=body, headers=bearer("key-a"), timeout=30) as stream:
            for line in stream.iter_lines():
                lines.append(line)
                if len(lines) == 1:
                    file.write_text("bob key-b\n")
                    models = f"{server.url}/v1/models"
                    assert httpx.get(models, headers=bearer("key-a")).status_code == 401
                    assert httpx.get(models, headers=bearer("key-b")).status_code == 200
        assert "data: [DONE]" in lines
        assert server.metric('cohort_key_tokens_total{key="alice",kind="output"}') == 60
        # No terminal, no admin key.
        assert httpx.get(f"{server.url}/v1/settings", headers=bearer("key-b")).status_code == 404
        log = server.log()
        assert "key=alice" in log and "key-a" not in log and "Admin key" not in log + server.output()
        assert "there is no admin key" in log, "a root for adapters without one who may load them"


def test_a_terminal_shows_the_admin_key_of_its_start(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("cohort")), "serve", "--executor", "echo", "--port", "0"]
    with Terminal(command, tmp_path) as terminal:
        terminal.expect("is ready at ")
        terminal.expect("Admin key of this start: ")
        terminal.expect("\n")
        found = re.search(r"listening on (http://\S+)", terminal.shown)
        key = re.search(r"Admin key of this start: (\S+)", terminal.shown)
        assert found is not None and key is not None
        assert terminal.shown.count(key[1]) == 2, "once more in the console's address"
        url = f"{found[1]}/v1/settings"
        assert httpx.get(url).status_code == 401
        answer = httpx.get(url, headers=bearer(key[1]))
        assert answer.status_code == 200 and answer.json()["settings"]["executor"]["value"] == "echo"
        assert key[1] not in answer.text
