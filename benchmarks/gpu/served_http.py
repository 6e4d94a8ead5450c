"""The stage of `served` over HTTP: the server that `cohort serve` starts, in this process over the running executor, and clients
in another process. The latency policy is the default one: prompts hold decodes up no longer than it allows."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from benchmarks.gpu import shapes
from benchmarks.gpu.http_load import Wave
from benchmarks.gpu.lent import lend
from benchmarks.gpu.part import ROOT, Failed, Figures
from benchmarks.gpu.serving import until
from engine.core.engine import EngineCore
from engine.observer import Observer, Observers
from engine.sequence import Sequence as EngineSequence
from server.http.listener import listen
from server.settings.load import load
from server.startup import model_loader
from server.startup.bootstrap import Bootstrap
from server.state.server_state import ServerState
from server.system import logs

if TYPE_CHECKING:
    from benchmarks.gpu.served import Stages

_READY, _ENDS = 10.0, 15.0
WORDS_OFF = 0.02
"""Share of the tokens that may show as no word of their own: bytes are 256 of 151,936 ids."""
MOST_LATE = 100.0
"""Milliseconds by which requests may be sent late, at the 99th percentile: else the clients were measured."""


def waves(tiny: bool, vocabulary: int) -> list[Wave]:
    """512 tokens in and 128 out, at three rates and all at once. The first wave warms up: chunks and sizes of batches that no
    stage before had."""
    if tiny:
        return [Wave("warm", 3, 0.0, 8, 4, vocabulary, 1), Wave("50/s", 6, 50.0, 8, 5, vocabulary, 2)]
    low = min(vocabulary, 10_000)
    return [
        Wave("warm", 64, 0.0, 512, 32, low, 1),
        *(
            Wave(f"{rate}/s", count, rate, 512, 128, low, rate)
            for rate, count in ((16, 56), (64, 192), (160, 400))
        ),
        Wave("at once", 512, 0.0, 512, 128, low, 9),
    ]


class Counted(Observer):
    """Tokens of the sequences that ended, as the engine has them."""

    def __init__(self) -> None:
        self.prompt_tokens = self.output_tokens = 0

    def finished(self, seq: EngineSequence, now: float) -> None:
        """See `Observer`."""
        self.prompt_tokens += seq.prompt_len
        self.output_tokens += len(seq.output_token_ids)


class _Loader(model_loader.ModelLoader):
    """Keeps its engine where it can be watched."""

    engine: EngineCore | None = None
    state: ServerState | None = None

    def _core(self, state: ServerState) -> EngineCore:
        self.state, self.engine = state, super()._core(state)
        return self.engine

    @property
    def is_ready(self) -> bool:
        """Whether requests are answered."""
        return self.state is not None and self.state.model is not None


async def over_http(stages: Stages, folder: Path) -> None:
    """Serve, send the waves one after the other, and end the server. Raises Failed for a lost stream, and where the client's, the
    server's and the engine's numbers of tokens differ. A refusal is a figure."""
    shape = shapes.SHAPES[stages.shape]
    flags = {
        "model": str(folder), "load_format": "dummy", "port": 0, "host": "127.0.0.1", "served_model_name": ["served"],
        "max_num_seqs": stages.executor.capabilities().max_batch_size, "generation_config": "none",
        "max_num_batched_tokens": stages.executor.capabilities().max_batched_tokens,
    }  # fmt: skip
    settings, _ = load(flags, {})
    logs.configure(
        settings.log_level, settings.log_format
    )  # a line for each request is part of what a server does
    listener = listen(settings.host, settings.port, settings.write_timeout)
    given = waves(stages.options.tiny, int(shape["vocab_size"]))
    with mock.patch.object(model_loader, "connect", lambda *_, **__: lend(stages.executor)):
        server = Bootstrap(settings)
        loader = server.loader = _Loader(server.settings, server.loader.source)
        serving = asyncio.create_task(server.serve(listener))
        try:
            if not await until(lambda: serving.done() or loader.is_ready, _READY):
                raise Failed(f"the server was not ready after {_READY:g} s")
            if serving.done():
                serving.result()
                raise Failed("the server ended before it was ready")
            assert loader.engine is not None
            await _measure(stages, loader.engine, f"http://127.0.0.1:{listener.port}", given)
        finally:
            if not serving.done():
                os.kill(os.getpid(), signal.SIGTERM)  # which the server takes for the wish to end
                await asyncio.wait((serving,), timeout=_ENDS)
            serving.cancel()


async def _measure(stages: Stages, core: EngineCore, url: str, given: Sequence[Wave]) -> None:
    counted = Counted()
    observer = core.observer
    assert isinstance(observer, Observers)
    observer.add(counted)
    epoch = core.stats().epoch
    clients = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.gpu.http_load", url, cwd=ROOT, stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert clients.stdin is not None and clients.stdout is not None
    http: dict[str, Figures] = {}
    try:
        for wave in given:
            before = counted.prompt_tokens, counted.output_tokens
            clients.stdin.write(json.dumps(asdict(wave)).encode() + b"\n")
            await clients.stdin.drain()
            line = await clients.stdout.readline()
            if not line:
                raise Failed(f"the clients ended in wave {wave.name}")
            found: Figures = json.loads(line)
            # The end of a sequence is counted before its last token is sent.
            engine = counted.prompt_tokens - before[0], counted.output_tokens - before[1]
            http[str(found.pop("name"))] = found
            stages.found({"http": dict(http)})
            judge(wave, found, engine)
            if not stages.options.tiny:
                check_clients(wave, found)
        if core.stats().epoch != epoch:
            raise Failed("the executor was restarted or reset meanwhile: see the log")
    finally:
        if clients.returncode is None:
            clients.kill()
        await clients.wait()


def judge(wave: Wave, found: Figures, engine: tuple[int, int]) -> None:
    """Raises Failed unless every stream was served or refused, and all count the same tokens. `engine`: tokens of prompts and of
    outputs that the engine counted meanwhile."""
    if found["lost"]:
        raise Failed(
            f"{wave.name}: {found['lost']} streams were lost, the first with: {found['why_lost'][0]}"
        )
    served = found["served"]
    if served + found["refused"] != wave.requests:
        raise Failed(f"{wave.name}: {served} served and {found['refused']} refused of {wave.requests}")
    if not served:
        raise Failed(f"{wave.name}: all were refused")
    for what, tokens, counted, asked in (
        ("prompt", found["prompt_tokens"], engine[0], served * wave.prompt),
        ("output", found["output_tokens"], engine[1], served * wave.output),
    ):
        if not tokens == counted == asked:
            raise Failed(
                f"{wave.name}: {asked} {what} tokens were asked for, usage says {tokens}, the engine {counted}"
            )
    # A vocabulary of bytes alone has no words.
    if (
        abs(found["words"] - found["output_tokens"]) > 2 + WORDS_OFF * found["output_tokens"]
        and wave.vocabulary > 1000
    ):
        raise Failed(
            f"{wave.name}: the texts have {found['words']} words, usage says {found['output_tokens']} tokens"
        )


def check_clients(wave: Wave, found: Figures) -> None:
    """Raises Failed where the clients did not keep up."""
    if found["client_late_ms_p99"] > MOST_LATE:
        raise Failed(
            f"{wave.name}: requests were sent {found['client_late_ms_p99']:.0f} ms late: the clients were too slow"
        )
