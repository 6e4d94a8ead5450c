"""Replicas on a real Ray of this machine: what prefix affinity finds again, what Ray costs, how soon streams go on after a death.

    .reports/ray-venv/bin/python -m benchmarks.replicas [--parts prefix events deaths] [--rounds 3] [--json FILE]

Needs Ray: `make test-external ONLY=ray` makes that environment. Two replicas share the machine's cores.

prefix   40 conversations of 6 turns, interleaved, 8 calls at once, with cohort-tiny. A replica's KV pool holds two thirds of all
         conversations at their end: two replicas hold each of them once and not twice. The share of prompt tokens that was
         found in a prefix cache, by affinity, at random, and by the least load; rounds alternate, each with its own cache salt.
events   microseconds of CPU per token on its way to a client, by process: `cohort serve`, and `cohort ray serve` with one
         and two replicas. Echo executor, 64 streams. See `benchmarks.front_ends`, which counts in the same way.
deaths   seconds from SIGKILL to a replica under 16 streams to the next token of each of its streams, and until Ray has brought
         another replica.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.attention import cpu_name
from tests.chaos.asked import asks
from tests.chaos.client import Stream, open_client
from tests.chaos.conftest import EXACT
from tests.e2e.checkpoints import write_tokenizer
from tests.e2e.server_process import ServerProcess
from tests.ray.conftest import RayServer, kill
from tools.neutral_paths import neutral

CONVERSATIONS, TURNS, AT_ONCE = 40, 6, 8
ASKED, ANSWERED, SYSTEM = 60, 40, 48
"""Tokens of what a user says, of an answer, and of the system prompt that all conversations have in common."""
KV_TOKENS = CONVERSATIONS * (SYSTEM + TURNS * (ASKED + ANSWERED)) * 2 // 3
KV_BYTES_PER_TOKEN = 2048
"""Of cohort-tiny in bfloat16."""
_TICK = os.sysconf("SC_CLK_TCK")
_ASCII, _LONG = 128, 100_000


# -- prefix ------------------------------------------------------------------------------------------------------------


def _routers() -> dict[str, Any]:
    from server.remote.replicas.router import Router

    class AtRandom(Router):
        def choose(
            self, keys: Any, otherwise: Any, adapter: Any = None, count: int = 1, allowed: Any = None
        ) -> str | None:
            return random.choice(sorted(allowed))

    class LeastLoad(Router):
        def choose(
            self, keys: Any, otherwise: Any, adapter: Any = None, count: int = 1, allowed: Any = None
        ) -> str | None:
            return min(random.sample(sorted(allowed), len(allowed)), key=self.load)

    return {"affinity": Router, "random": AtRandom, "least load": LeastLoad}


async def _conversation(model: Any, number: int, salt: str, gate: asyncio.Semaphore) -> list[float]:
    """Seconds to the first token of each turn."""
    from engine.request import RequestContext
    from engine.text.generation import TextRequest
    from executors.contract import SamplingParams

    rng, width = random.Random(number), 1000
    history = [random.Random("system").randrange(width) for _ in range(SYSTEM)]
    found = []
    for _ in range(TURNS):
        history += [rng.randrange(width) for _ in range(ASKED)]
        async with gate:
            begun = time.monotonic()
            context = RequestContext(f"{salt}-{number}", begun, cache_salt=salt)
            asked = TextRequest(
                context,
                (tuple(history),),
                max_tokens=ANSWERED,
                ignore_eos=True,
                sampling=SamplingParams(temperature=0.0),
            )
            first = None
            async with model.engine.start(asked) as generation:
                async for delta in generation:
                    first = first or time.monotonic()
                    history += delta.token_ids
            found.append((first or begun) - begun)
        await asyncio.sleep(rng.random() * 0.05)
    return found


async def _prefix_round(settings: Any, handle: Any, router: Any, salt: str) -> dict[str, float]:
    from server.ray_serve.ingress import Ingress
    from server.ray_serve.ray_side import RayTransport

    ingress = Ingress(settings, RayTransport(handle), router())
    model = await ingress.load()
    try:
        async with asyncio.timeout(120):
            while len(ingress.fleet.present) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        before = await _prefix_figures(ingress)
        begun, gate = time.monotonic(), asyncio.Semaphore(AT_ONCE)
        rounds = await asyncio.gather(
            *(_conversation(model, number, salt, gate) for number in range(CONVERSATIONS))
        )
        seconds, after = time.monotonic() - begun, await _prefix_figures(ingress)
        assert ingress.core is not None
        return {
            "hit_rate": (after[1] - before[1]) / (after[0] - before[0]),
            "prompt_tokens": after[0] - before[0],
            "seconds": seconds,
            "ttft_s": statistics.mean(one for turns in rounds for one in turns[1:]),
        }
    finally:
        await ingress.stop()
        if ingress.state.judge is not None:
            await ingress.state.judge.close()
        ingress.state.threads.close()


async def _prefix_figures(ingress: Any) -> tuple[int, int]:
    """Prompt tokens looked up, and found, at all replicas, once they have reported again."""
    await asyncio.sleep(1.5)
    stats = [member.stats for member in ingress.fleet.present]
    return sum(one.prefix_queries for one in stats), sum(one.prefix_hits for one in stats)


def prefix(rounds: int) -> dict[str, Any]:
    """Hit rates by way of routing."""
    from server.commands.ray import _set_environment

    _set_environment(own=True)
    from cohort_server import ray_app
    from server.ray_serve import ray_side
    from server.ray_serve.placing import placing_of
    from server.settings.load import load
    from server.system import logs

    settings, _ = load(
        {
            "model": "cohort-tiny",
            "kv_cache_memory_bytes": str(KV_TOKENS * KV_BYTES_PER_TOKEN),
            "log_level": "warning",
        },
        {},
    )
    logs.configure("warning")
    placing = placing_of(settings, 2, None, None, 0.0)
    ray_side.connect(None, 2)
    found: dict[str, list[dict[str, float]]] = {}
    try:
        handle = ray_side.deploy(ray_app.engines(settings, placing), "prefix")
        asyncio.run(ray_side.watch_deployment("prefix"))
        for number in range(rounds):
            for name, router in _routers().items():
                one = asyncio.run(_prefix_round(settings, handle, router, f"{name} {number}"))
                found.setdefault(name, []).append(one)
                print(f"prefix, round {number + 1}, {name}: {one}", file=sys.stderr, flush=True)
    finally:
        ray_side.take_down("prefix", True)
    medians = {name: _medians(many) for name, many in found.items()}
    sizes = {
        "conversations": CONVERSATIONS,
        "turns": TURNS,
        "kv_tokens_per_replica": KV_TOKENS,
        "replicas": 2,
    }
    return {**sizes, "routing": medians}


def _medians(many: Sequence[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(one[key] for one in many), 4) for key in many[0]}


# -- events ------------------------------------------------------------------------------------------------------------


def _kinds(server: ServerProcess) -> dict[str, float]:
    """CPU seconds so far, by kind of process."""
    used = dict.fromkeys(("ingress", "replicas", "executors", "rest of Ray"), 0.0)
    pids = server.descendants() if isinstance(server, RayServer) else [server.pid, *server.children()]
    for pid in pids:
        try:
            title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        kind = "rest of Ray"
        if pid == server.pid:
            kind = "ingress"
        elif title.startswith("ray::ServeReplica"):
            kind = "replicas"
        elif title.startswith("cohort: executor"):
            kind = "executors"
        used[kind] += (int(fields[11]) + int(fields[12])) / _TICK
    return used


def _tokens(server: ServerProcess) -> float:
    total = 0.0
    for line in server.get("/metrics").text.splitlines():
        if line.startswith("cohort_tokens_total{") and 'kind="output"' in line:
            total += float(line.rpartition(" ")[2])
    return total


def _running(server: ServerProcess) -> float:
    lines = server.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("cohort_requests_running"))


def _events_once(replicas: int, streams: int, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model").mkdir()
        args = [str(write_tokenizer(folder / "model")), "--executor", "echo", "--served-model-name", "echo"]
        for option in (f"vocab_size={_ASCII}", "step_delay_ms=20"):
            args += ["--executor-option", option]
        args += ["--max-num-seqs", str(streams), "--max-model-len", str(_LONG + 100)]
        made = RayServer(args, folder, replicas) if replicas else ServerProcess(args, folder)
        with made as server:
            command = [
                sys.executable,
                "-m",
                "benchmarks.front_ends",
                "--client",
                server.url,
                "--streams",
                str(streams),
            ]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as client:
                try:
                    deadline = time.monotonic() + 60
                    while _running(server) < streams:
                        assert time.monotonic() < deadline, server.log()[-3000:]
                        time.sleep(0.2)
                    time.sleep(2)
                    before, first, begun = _kinds(server), _tokens(server), time.monotonic()
                    time.sleep(seconds)
                    after, last = _kinds(server), _tokens(server)
                    span = time.monotonic() - begun
                finally:
                    client.kill()
    used = {kind: after[kind] - before[kind] for kind in before}
    # Ray's own processes do not speak in between: what they use does not grow with the tokens.
    rest = used.pop("rest of Ray") / span
    found = {kind: round(1e6 * seconds / (last - first), 1) for kind, seconds in used.items()}
    return {**found, "rest_of_ray_cores": round(rest, 3), "events_per_s": round((last - first) / span)}


def events(rounds: int) -> dict[str, Any]:
    """Microseconds of CPU per token, by number of replicas; 0: `cohort serve`."""
    found: dict[int, list[dict[str, float]]] = {0: [], 1: [], 2: []}
    for number in range(rounds):
        for replicas, many in found.items():
            many.append(_events_once(replicas, 64, 6.0))
            print(f"events, round {number + 1}, {replicas} replicas: {many[-1]}", file=sys.stderr, flush=True)
    return {
        "streams": 64,
        "step_ms": 20,
        "replicas": {str(count): _medians(many) for count, many in found.items()},
    }


# -- deaths ------------------------------------------------------------------------------------------------------------


async def _death(server: RayServer) -> dict[str, float]:
    bodies = [asks(f"Story {number}.", seed=number, temperature=1.0, max_tokens=1500) for number in range(16)]
    pids = await asyncio.to_thread(server.wait_for_replicas, 2)
    streams = [Stream(body) for body in bodies]
    async with open_client(server) as client:
        running = [asyncio.create_task(stream.run(client)) for stream in streams]
        await asyncio.gather(*(stream.reaches(20) for stream in streams))
        name = max(pids, key=lambda one: server.metric(f'cohort_replica_sequences{{replica="{one}"}}'))
        theirs = server.metric(f'cohort_replica_sequences{{replica="{name}"}}')
        killed = kill(pids[name])
        # Streams of the other replica go on at once; those of this one are the ones that pause longest.
        await asyncio.gather(*(stream.reaches(stream.tokens + 60) for stream in streams))
        pauses = sorted(
            max(
                (b - a for a, b in zip(one.heard_at, one.heard_at[1:], strict=False) if b > killed),
                default=0.0,
            )
            for one in streams
        )
        after = await asyncio.to_thread(server.wait_for_replicas, 2, [pids[name]])
        again = time.monotonic() - killed
        assert len(after) == 2
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    moved = pauses[-int(theirs) :]
    return {
        "streams_moved": theirs,
        "next_token_s": statistics.median(moved),
        "longest_s": moved[-1],
        "two_replicas_again_s": again,
    }


def deaths(rounds: int) -> dict[str, Any]:
    """Medians over kills."""
    with tempfile.TemporaryDirectory() as name:
        with RayServer(["cohort-tiny", *EXACT], Path(name)) as server:
            many = []
            for number in range(rounds):
                many.append(asyncio.run(_death(server)))
                print(f"deaths, round {number + 1}: {many[-1]}", file=sys.stderr, flush=True)
    return {"streams": 16, "kills": rounds, **_medians(many)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = {"events": events, "deaths": deaths, "prefix": prefix}
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    result: dict[str, Any] = {"cpu": cpu_name(), "cores": os.cpu_count()}
    if asked.json and asked.json.exists():
        result = json.loads(asked.json.read_text()) | result
    for name in asked.parts:
        result[name] = parts[name](asked.rounds)
        print(json.dumps({name: result[name]}, indent=2), flush=True)
        if asked.json:
            asked.json.write_text(json.dumps(neutral(result), indent=2) + "\n")


if __name__ == "__main__":
    main()
