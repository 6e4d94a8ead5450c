"""`cohort serve ORG/NAME` against a hub on this machine: from an empty cache to tokens, and every way that it can end."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from executors.llm.model.config import read_config
from executors.llm.model.decoder import Decoder
from tests.e2e.checkpoints import VOCAB_SIZE, write_model
from tests.e2e.server_process import ServerProcess
from tests.server.hub.fake_hub import COMMIT, FakeHub

pytestmark = pytest.mark.long

NAME = "acme/random-1m"
MIB = 1 << 20


def write_weights(folder: Path, shards: int) -> None:
    """Random weights for the config.json in `folder`, in so many files with an index."""
    decoder = Decoder(read_config(folder), torch.float32, torch.device("cpu"))
    heads = decoder.head_norms()
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.randn(tensor.shape[1:] if name in heads else tensor.shape, generator=generator) * 0.05
        for name, tensor in decoder.parameters().items()
    }
    index = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in list(tensors)[number::shards]}
        save_file(part, folder / file)
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 of about 6 MB."""
    folder = tmp_path_factory.mktemp("repository")
    write_model(folder, hidden_size=256, intermediate_size=768)
    write_weights(folder, shards=2)
    return folder


@pytest.fixture
def hub(repository: Path) -> FakeHub:
    return FakeHub(repository)


@pytest.fixture
def env(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    with hub.serving() as url:
        yield {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "home")}


def until_progress(server: ServerProcess, done: int) -> dict[str, object]:
    """/ready's answer once that many bytes are there."""
    deadline = time.monotonic() + 30
    while (body := server.get("/ready").json()).get("done", 0) < done:
        server.check_alive()
        assert time.monotonic() < deadline, body
        time.sleep(0.02)
    return dict(body)


def answer(server: ServerProcess, model: str = NAME, **more: object) -> dict[str, object]:
    body = {"model": model, "prompt": "Hi", "max_tokens": 5}
    response = server.post("/v1/completions", body | more)
    assert response.status_code == 200, response.text
    [choice] = response.json()["choices"]
    return dict(choice)


def test_from_an_empty_cache_to_tokens(hub: FakeHub, env: dict[str, str], tmp_path: Path) -> None:
    """Interrupted in the middle, started again, served, and served once more without a network."""
    hub.hold_after = 2 * MIB + 5000
    first = ServerProcess([NAME], tmp_path, env=env)
    try:
        body = until_progress(first, 4 * MIB)
        assert (body["status"], body["phase"]) == ("loading", "downloading")
        assert str(body["detail"]).startswith(f"downloading {NAME} ")
        assert isinstance(body["total"], int) and body["total"] > 5 * MIB
        assert [first.get(path).status_code for path in ("/ready", "/health", "/live")] == [503, 503, 200]
        assert first.get(f"/v1/models/{NAME}").json()["id"] == NAME
        assert first.post("/v1/completions", {"prompt": "Hi"}).status_code == 503
        assert first.get("/metrics").status_code == 200
        [child] = first.children()
        begun = time.monotonic()
        first.process.send_signal(signal.SIGINT)
        assert first.process.wait(10) == 0
        assert time.monotonic() - begun < 3
        assert not Path(f"/proc/{child}").exists()
        assert f"downloading {NAME}" in first.log()
        assert "Traceback" not in first.log()
    finally:
        first.kill()

    hub.hold_after = None
    hub.requests.clear()
    args = [NAME, "--override-generation-config", '{"top_k": 1}']
    with ServerProcess(args, tmp_path, env=env) as second:
        assert hub.ranges() == [f"bytes={2 * MIB}-"] * 2
        assert second.get("/ready").json() == {"status": "ready"}
        choice = answer(second, temperature=0)
        assert choice["finish_reason"] == "length"
        assert [answer(second, seed=seed)["text"] for seed in (1, 2)] == [choice["text"]] * 2, "top_k is 1"
        assert answer(second, seed=1, top_k=0)["text"] != choice["text"]
        assert f"model={NAME}" in second.log() and "family=qwen3" in second.log()
    assert [path.name for path in tmp_path.glob("home/hub/models--*/snapshots/*")] == [COMMIT]

    # Its end tokens are a directory's: all of them, so that the first one ends the answer.
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [*range(VOCAB_SIZE)]}))
    hub.requests.clear()
    args = [NAME, "--generation-config", str(tmp_path), "--served-model-name", "mine"]
    with ServerProcess(args, tmp_path, env={**env, "HF_HUB_OFFLINE": "1"}) as third:
        assert hub.requests == []
        assert answer(third, "mine")["finish_reason"] == "stop"


@pytest.mark.long(extended=True)
@pytest.mark.parametrize(
    ("args", "more", "words"),
    [
        ([NAME], {"HF_HUB_OFFLINE": "1"}, f"{NAME} is not, or not completely, in the cache"),
        ([NAME], {"HF_TOKEN": "wrong"}, f"{NAME} is gated: accept its conditions at http"),
        ([NAME, "--revision", "v9"], {}, f"{NAME} has no revision v9: check --revision"),
        (["acme/nothing"], {}, "no directory acme/nothing here, and no repository acme/nothing"),
    ],
)
def test_what_cannot_be_fetched_is_one_line(
    hub: FakeHub, env: dict[str, str], tmp_path: Path, args: list[str], more: dict[str, str], words: str
) -> None:
    hub.token = "right"
    server = ServerProcess(args, tmp_path, env=env | more)
    try:
        assert server.process.wait(30) == 2
    finally:
        server.kill()
    log = server.log()
    assert log.splitlines()[-1].startswith(f"cohort: error: {words}")
    assert log.count("cohort: error") == 1
    assert "Traceback" not in log
    assert "wrong" not in log
    assert server.output() == ""


@pytest.mark.long(extended=True)
@pytest.mark.parametrize(
    ("config", "args", "words"),
    [
        ({"architectures": ["GrokForCausalLM"]}, [], "GrokForCausalLM"),
        ({}, ["--chat-template", "/nowhere"], "--chat-template /nowhere"),
        ({}, ["--dtype", "int3"], "dtype 'int3'"),
        ({}, ["--executor", "magic"], "unknown executor 'magic'"),
    ],
)
def test_no_weights_are_fetched_for_what_cannot_be_served(
    tmp_path: Path, hub: FakeHub, env: dict[str, str], config: dict[str, object], args: list[str], words: str
) -> None:
    hub.folder = Path(shutil.copytree(hub.folder, tmp_path / "repository"))
    fields = json.loads((hub.folder / "config.json").read_text())
    (hub.folder / "config.json").write_text(json.dumps({**fields, **config}))
    server = ServerProcess([NAME, *args], tmp_path, env=env)
    try:
        assert server.process.wait(30) == 2
    finally:
        server.kill()
    assert words in server.log().splitlines()[-1]
    assert not any(path.startswith("/cdn/") for _, path, _ in hub.requests)


@pytest.mark.long(extended=True)
def test_a_bar_on_a_terminal(hub: FakeHub, env: dict[str, str], tmp_path: Path) -> None:
    hub.hold_after = MIB
    main, terminal = pty.openpty()
    command = [str(Path(sys.executable).with_name("cohort")), "serve", NAME, "--port", "0"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=terminal, stdout=terminal, env={**os.environ, **env, "COLUMNS": "100"}
    )
    os.close(terminal)
    try:
        shown = b""
        while f"downloading {NAME}".encode() not in shown or b"%" not in shown:
            shown += os.read(main, 65536)
        assert not re.search(rb"info[^\n]*downloading", shown)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        os.close(main)


def test_the_library_is_imported_for_hub_names_only() -> None:
    """Its import would be a third of the time until the port answers."""
    code = "import sys, server.startup.bootstrap; assert not {'huggingface_hub', 'httpx2', 'tqdm'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_pull_fetches_and_says_where(hub: FakeHub, env: dict[str, str], tmp_path: Path) -> None:
    """Progress in lines where there is no terminal, and nothing is fetched twice."""
    command = [str(Path(sys.executable).with_name("cohort")), "pull", NAME]

    def pull() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True, timeout=50
        )

    done = pull()
    assert (done.returncode, done.stderr.splitlines()[0]) == (0, f"Fetching {NAME}")
    where = done.stdout.removeprefix(f"{NAME} is here: ").partition(" (")[0]
    assert (Path(where) / "model.safetensors.index.json").exists() and Path(where).is_relative_to(
        tmp_path / "home"
    )
    assert done.stdout.endswith(f"To chat with it: cohort run {NAME}\n")
    assert pull().stdout == done.stdout
    command[2:] = ["acme/no-such"]
    missing = pull()
    assert missing.returncode == 1
    assert "no repository acme/no-such" in missing.stderr.splitlines()[-1]
