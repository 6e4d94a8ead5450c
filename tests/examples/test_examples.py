"""Every example runs as it stands and shows what it says."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.server_process import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LIMA = "The capital of Peru is Lima."
pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(["cohort-tiny"], tmp_path_factory.mktemp("tiny")) as server:
        yield server


def run(name: str, *arguments: str) -> str:
    words = ["sh" if name.endswith(".sh") else sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_curl(server: ServerProcess) -> None:
    out = run("curl.sh", server.url)
    answers = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    models, chat, completion = answers
    assert models["data"][0]["id"] == "cohort-tiny"
    assert chat["choices"][0]["message"]["content"] == LIMA
    assert completion["usage"]["completion_tokens"] <= 8 and completion["choices"][0]["text"]
    events = [line.removeprefix("data: ") for line in out.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    deltas = [json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events]
    assert "".join(deltas) == LIMA


def test_curl_fails_where_the_server_refuses(server: ServerProcess) -> None:
    words = ["sh", str(EXAMPLES / "curl.sh"), f"{server.url}/nowhere"]
    assert subprocess.run(words, capture_output=True, timeout=60).returncode != 0


def test_streaming(server: ServerProcess) -> None:
    text, usage = run("openai_streaming.py", f"{server.url}/v1").splitlines()
    assert text == LIMA
    assert re.fullmatch(r"\d+ \+ \d+ tokens", usage)


def test_tools(server: ServerProcess) -> None:
    call, answer = run("openai_tools.py", f"{server.url}/v1").splitlines()
    assert re.fullmatch(r'get_weather\(\{"city": ?"Paris"\}\) -> sunny, 21 degrees', call)
    assert "sunny" in answer


def test_json_schema(server: ServerProcess) -> None:
    found = ast.literal_eval(run("openai_json_schema.py", f"{server.url}/v1"))
    assert set(found) == {"name", "population", "coastal"}
    assert isinstance(found["population"], int) and isinstance(found["coastal"], bool)


def test_embeddings(server: ServerProcess) -> None:
    head, *lines = run("embeddings.py", f"{server.url}/v1").splitlines()
    assert head == "3 vectors of 256 numbers"
    own, near, far = (float(line.split()[0]) for line in lines)
    assert own == 1.0 > near > far


def test_offline() -> None:
    lines = run("offline.py", "cohort-tiny").splitlines()
    assert lines[2] == "The capital of Japan is -> " + lines[2].partition(" -> ")[2] and len(lines) == 6
    assert lines[3] == LIMA
    assert [re.fullmatch(r"(\d): '.+' (length|stop) -\d+\.\d\d", line)[1] for line in lines[4:]] == ["0", "1"]
    assert len((EXAMPLES / "offline.py").read_text().splitlines()) <= 32


def test_own_executor(tmp_path: Path) -> None:
    """It is the program of docs/executors.md, and serves under its dotted name."""
    program = (EXAMPLES / "own_executor.py").read_text()
    [block, *_] = re.findall(r"```python\n(.*?)```", (ROOT / "docs/executors.md").read_text(), re.DOTALL)
    assert program.partition('"""\n\n')[2] == block
    environment = {
        "PYTHONPATH": os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    }
    with ServerProcess(["--executor", "own_executor:SuccessorFactory"], tmp_path, env=environment) as server:
        body = {"prompt": [5, 6, 5, 6, 5], "max_tokens": 6, "temperature": 0, "return_token_ids": True}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
    assert answer["choices"][0]["token_ids"][0] == 6  # which followed 5 before
    assert answer["usage"]["completion_tokens"] == 6


def test_every_example_is_listed_and_run() -> None:
    names = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")}
    assert set(re.findall(r"^\| `(\S+)` \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE)) == names
    source = Path(__file__).read_text()
    assert not [name for name in names if name not in source and name != "own_executor.py"]
