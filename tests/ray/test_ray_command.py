"""`cohort ray serve` by its command line: keys, full queues, its end; what cannot be served; the Serve application."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import yaml

from tests.e2e.checkpoints import write_tokenizer
from tests.e2e.conftest import ECHO
from tests.e2e.server_process import ServerProcess
from tests.ray.conftest import READY_WITHIN, RayServer, alive, kill

pytestmark = [pytest.mark.external, pytest.mark.timeout(700)]

ROOT = Path(__file__).parents[2]
KEY, ADMIN = "a-key-of-a-client", "a-key-of-the-admin"
BEARER = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("echo-model"))


def body(length: int, prompt: str = "abc") -> dict[str, object]:
    return {"prompt": prompt, "max_tokens": length, "ignore_eos": True, "temperature": 0}


def test_keys_queues_and_the_end(tokenizer_dir: Path, tmp_path: Path) -> None:
    """One sequence at a time and one that waits, at each of two replicas: a fifth call is refused as by one server. SIGINT lets
    what runs come to its end, and takes Ray down."""
    args = [str(tokenizer_dir), *ECHO, "--executor-option", "step_delay_ms=10", "--served-model-name", "echo"]
    args += ["--max-num-seqs", "1", "--max-queued-seqs", "1", "--api-key", KEY, "--admin-key", ADMIN]
    server = RayServer([*args, "--enable-kill-button"], tmp_path, replicas=2)
    clients = contextlib.ExitStack()
    try:
        ServerProcess.wait_until_ready(server)
        url, client = server.url, clients.enter_context(httpx.Client(timeout=60))
        assert client.post(f"{url}/v1/completions", json=body(3)).status_code == 401
        admin = {"Authorization": f"Bearer {ADMIN}"}
        deadline = time.monotonic() + READY_WITHIN
        while len(cards := client.get(f"{url}/v1/executors", headers=BEARER).json()["data"]) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        with ThreadPoolExecutor(8) as threads:

            def ask(number: int) -> httpx.Response:
                return httpx.post(f"{url}/v1/completions", json=body(400), headers=BEARER, timeout=60)

            running = []
            for number in range(4):
                running.append(threads.submit(ask, number))
                time.sleep(0.3)
            refused = ask(5)
            assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1, refused.text
            assert refused.json()["error"]["code"] == "overloaded"
            answers = [one.result() for one in running]
            assert [one.status_code for one in answers] == [200] * 4
            assert len({one.json()["choices"][0]["text"] for one in answers}) == 1

            # What concerns one replica is passed on to it, with the administrator's key alone.
            name = cards[0]["replica"]
            where = f"{url}/v1/kill_executor?replica={name}"
            assert client.post(where, headers=BEARER).status_code == 401
            wrong = client.post(f"{url}/v1/kill_executor?replica=nobody", headers=admin)
            assert wrong.status_code == 400 and name in wrong.json()["error"]["message"]
            assert client.post(where, headers=admin).json() == {"killed": cards[0]["pid"]}
            load = client.post(f"{url}/v1/load_lora_adapter", json={"lora_name": "a"}, headers=admin)
            assert load.status_code == 400 and "--lora-modules" in load.json()["error"]["message"]
            with client.stream(
                "GET", f"{url}/v1/steps?replica={cards[1]['replica']}", headers=admin
            ) as steps:
                assert next(steps.iter_lines()).startswith(("data:", "event:", "id:"))

            last = threads.submit(ask, 6)
            time.sleep(0.5)
            below = server.descendants()
            server.process.send_signal(signal.SIGINT)
            assert last.result().status_code == 200
        assert server.process.wait(60) == 0, server.log()
        deadline = time.monotonic() + 20
        while left := [pid for pid in below if alive(pid)]:
            assert time.monotonic() < deadline, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]
            time.sleep(0.2)
    finally:
        clients.close()
        if server.process.poll() is None:
            kill(server.pid)


@pytest.mark.parametrize(
    "args, says",
    [
        (["/no/such/model"], "/no/such/model"),
        (["cohort-tiny", "--api-server-count", "2"], "--api-server-count"),
        (["cohort-tiny", "--lora-root", "/tmp"], "--lora-modules"),
        (["cohort-tiny", "--replicas", "0"], "--replicas"),
        (["cohort-tiny", "--ray-address", "127.0.0.1:1"], "127.0.0.1:1"),
    ],
)
def test_what_cannot_be_served(args: list[str], says: str, tmp_path: Path) -> None:
    run = cohort("ray", "serve", *args, "--port", "0", folder=tmp_path)
    assert run.returncode == 2, run.stderr
    [line] = [line for line in run.stderr.splitlines() if line.startswith("cohort: error: ")]
    assert says in line


def test_replicas_that_cannot_load(tokenizer_dir: Path, tmp_path: Path) -> None:
    """Serve tries again and gives up; the command says why and ends, and so does Ray."""
    run = cohort("ray", "serve", str(tokenizer_dir), "--replicas", "1", "--port", "0", folder=tmp_path)
    assert run.returncode == 2, run.stderr
    [line] = [line for line in run.stderr.splitlines() if line.startswith("cohort: error: ")]
    assert "the replicas cannot be started" in line and "ConfigError" in line, line


def cohort(
    *words: str, folder: Path, within: float = 150, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("cohort")), *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=within, cwd=folder, env={**os.environ, **(env or {})}
    )


CLUSTER = """
import sys, ray
ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=200_000_000)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


def test_a_cluster_that_is_joined_stays(tokenizer_dir: Path, tmp_path: Path) -> None:
    """The command deploys on a Ray that was there, with its token, and leaves it there without the application."""
    env = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a-token-of-the-test-that-is-long-enough"}
    cluster = subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **env},
        cwd=tmp_path,
        text=True,
    )
    try:
        assert cluster.stdin is not None and cluster.stdout is not None
        address = cluster.stdout.readline().strip()
        args = [str(tokenizer_dir), *ECHO, "--served-model-name", "echo", "--ray-address", address]
        server = RayServer([*args, "--ray-app", "echo"], tmp_path, replicas=1, env=env)
        with server:
            answer = server.post("/v1/completions", body(5))
            assert answer.status_code == 200, answer.text
            assert not [pid for pid in server.descendants() if pid != server.pid], "they are the cluster's"
            [pid] = server.pids().values()
            again = cohort(
                "ray", "serve", *args, "--ray-app", "echo", "--port", "0", folder=tmp_path, env=env
            )
            assert again.returncode == 2 and "application 'echo' already" in again.stderr, again.stderr
            assert server.post("/v1/completions", body(5)).status_code == 200, "it runs on"
        deadline = time.monotonic() + 30
        while alive(pid):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert cluster.poll() is None
        cluster.stdin.close()
        assert cluster.wait(60) == 0
    finally:
        if cluster.poll() is None:
            cluster.kill()
        cluster.stdout.close()


APPLICATION = """
import signal, sys, threading
from cohort_server import rooms
rooms.enter()
import ray, yaml
from ray import serve
from server.ray_serve.ray_side import OBJECT_STORE_BYTES
ray.init(address="local", num_cpus=4, include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES)
from cohort_server.ray_app import build
args, port = yaml.safe_load(sys.argv[1]), int(sys.argv[2])
serve.start(http_options={"host": "127.0.0.1", "port": port}, proxy_location="HeadOnly")
serve.run(build(args), name="cohort")
print("running", flush=True)
sys.stdin.read()
serve.shutdown()
ray.shutdown()
"""


@pytest.fixture
def application(tokenizer_dir: Path, tmp_path: Path) -> Iterator[str]:
    """The application of the Serve YAML, with the echo executor, behind Serve's own proxy; yields its URL."""
    config = yaml.safe_load((ROOT / "configs/ray/cohort.yaml").read_text("utf-8"))
    [one] = config["applications"]
    (tmp_path / "keys").write_text(f"client {KEY}\n")
    args = {
        **one["args"],
        "model": str(tokenizer_dir),
        "executor": "echo",
        "executor_option": [ECHO[-1], "step_delay_ms=10"],
        "served_model_name": "echo",
        "api_key_file": str(tmp_path / "keys"),
    }
    port = free_port()
    env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    process = subprocess.Popen(
        [sys.executable, "-c", APPLICATION, json.dumps(args), str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
        cwd=tmp_path,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdin is not None
        for line in process.stdout:
            if line == "running\n":
                break
        yield f"http://127.0.0.1:{port}"
        process.stdin.close()
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.stdout.close()


def free_port() -> int:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def test_the_serve_application(application: str) -> None:
    """Streams, keys and operators' paths through Serve's proxy; a stream goes on while its replica is killed."""
    with httpx.Client(timeout=60) as client:
        talk_to(application, client)


def talk_to(url: str, client: httpx.Client) -> None:
    deadline = time.monotonic() + READY_WITHIN
    while client.get(f"{url}/ready").status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert client.post(f"{url}/v1/completions", json=body(3)).status_code == 401
    whole = client.post(f"{url}/v1/completions", json=body(300), headers=BEARER).json()["choices"][0]["text"]
    cards = client.get(f"{url}/v1/executors", headers=BEARER).json()["data"]
    pids = {
        card["replica"]: int(Path(f"/proc/{card['pid']}/stat").read_text().rpartition(")")[2].split()[1])
        for card in cards
    }
    text, killed = "", False
    with client.stream(
        "POST", f"{url}/v1/completions", json={**body(300), "stream": True}, headers=BEARER
    ) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
                if not killed and len(text) > 30:
                    killed = True
                    kill(pids[busy(client, url, pids)])
    assert text == whole and killed
    moved = [
        line
        for line in client.get(f"{url}/metrics").text.splitlines()
        if line.startswith("cohort_replica_sequences_moved_total")
    ]
    assert moved and float(moved[0].split()[-1]) == 1


def busy(client: httpx.Client, url: str, names: dict[str, int]) -> str:
    for line in client.get(f"{url}/metrics").text.splitlines():
        for name in names:
            if (
                line.startswith("cohort_replica_sequences{")
                and f'"{name}"' in line
                and not line.endswith(" 0.0")
            ):
                return name
    raise AssertionError("no replica has the sequence")


@pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`")  # in Ray's own schema
def test_serve_yaml_fits_ray_s_schema() -> None:
    from ray.serve.schema import ServeDeploySchema

    from server.settings.table import TABLE

    config = yaml.safe_load((ROOT / "configs/ray/cohort.yaml").read_text("utf-8"))
    found = ServeDeploySchema(**config)
    [application] = found.applications
    assert application.import_path == "cohort_server.ray_app:build"
    assert set(application.args) - {"replicas", "ingresses", "cpus_per_replica", "gpus_per_replica"} <= set(
        TABLE
    )
