"""The server's side of a download: a child process does it, its progress and its end come as lines of JSON.

{"progress": [bytes done, bytes in all]} ...
{"small": PATH}                                    all but the weights is there; the child waits for a byte on stdin
{"directory": PATH}  or  {"error": SENTENCE}       the end
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cohort_server import run
from server.hub.files import HubError, HubNotYet
from server.system.environment import without_empty

Report = Callable[[int, int], None]
Check = Callable[[Path], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class HubModel:
    """What to fetch. `revision`: branch, tag or commit, None for the default branch. `download_dir`: where the cache is, None
    for the hub library's own (HF_HOME). `weights`: False leaves safetensors out. `gguf`: a GGUF file of the repository, or the
    quantization of one; None takes safetensors, and a GGUF file where there are none. `adapter`: the repository holds a LoRA
    adapter."""

    name: str
    revision: str | None = None
    download_dir: str | None = None
    weights: bool = True
    gguf: str | None = None
    adapter: bool = False

    @property
    def label(self) -> str:
        """The model's name as it is given to `cohort serve`."""
        if self.gguf is None:
            return self.name
        return f"{self.name}{'/' if self.gguf.endswith('.gguf') else ':'}{self.gguf}"


async def fetch(model: HubModel, report: Report, check: Check | None = None) -> Path:
    """The directory of a repository's files, or its GGUF file, fetched into the cache where they are not there yet.

    `report` gets bytes done and bytes in all. `check` gets the directory when everything but the weights is there; what it
    raises ends the download before gigabytes are fetched for nothing. Cancelling ends it at once; the next one goes on
    where it stopped. Raises HubError, one sentence; HubNotYet where a later download may succeed.
    """
    process = await asyncio.create_subprocess_exec(
        *run.command("server.hub.download_process", json.dumps(asdict(model))),
        stdin=asyncio.subprocess.PIPE,  # its end tells the child that we are gone
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(),
        start_new_session=True,  # Ctrl-C in the terminal is the server's to answer
    )
    complaints = asyncio.create_task(_last_line(process.stderr))
    try:
        directory = await _converse(process, report, check)
        if directory is None:
            code = await process.wait()
            words = await complaints or f"exit code {code}"
            raise HubNotYet(f"{model.name} could not be fetched: the download process ended: {words}")
        return directory
    except HubNotYet:
        if fault := _endpoint_fault(model.name):  # with which no later download succeeds
            raise HubError(fault) from None
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        complaints.cancel()
        await asyncio.gather(complaints, return_exceptions=True)


def _endpoint_fault(name: str) -> str | None:
    """What is wrong with the hub's address, None if it can be one."""
    address = without_empty(os.environ).get("HF_ENDPOINT")
    try:
        parts = None if address is None else urlsplit(address)
        right = parts is None or (parts.scheme in ("http", "https") and bool(parts.hostname))
    except ValueError:  # brackets that nothing closes
        right = False
    hint = "it should be the URL of a hub, such as https://huggingface.co"
    # An address may hold a password in front of its host.
    visible_address = None if address is None else address.rpartition("@")[2]
    return None if right else f"{name} could not be fetched: HF_ENDPOINT is {visible_address!r}; {hint}"


async def _converse(process: Process, report: Report, check: Check | None) -> Path | None:
    """The directory, None if the child ended without one."""
    assert process.stdout is not None and process.stdin is not None
    async for line in process.stdout:
        match json.loads(line):
            case {"progress": [int(done), int(total)]}:
                report(done, total)
            case {"small": str(directory)}:
                if check is not None:
                    await check(Path(directory))
                process.stdin.write(b"\n")
            case {"directory": str(directory)}:
                return Path(directory)
            case {"error": str(sentence)}:
                raise HubError(sentence)
            case {"not_yet": str(sentence)}:
                raise HubNotYet(sentence)
    return None


async def _last_line(stream: asyncio.StreamReader | None) -> str:
    """Reads to the end, so that the child never waits for us."""
    assert stream is not None
    last = ""
    while chunk := await stream.read(4096):
        last = (last + chunk.decode("utf-8", "replace"))[-2000:]
    lines = last.strip().splitlines()
    return lines[-1].strip() if lines else ""


def _environment() -> dict[str, str]:
    """The server's, without its settings (keys are among them); HF_TOKEN, HF_HOME, HF_ENDPOINT and proxies stay."""
    env = {name: value for name, value in without_empty(os.environ).items() if not name.startswith("COHORT_")}
    return env | {
        # Plain HTTP for everything: one way that shows its progress and goes on after a cut.
        "HF_HUB_DISABLE_XET": "1",
        # Nothing is asked that the download does not need, and nothing told about this machine.
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_VERBOSITY": "error",
    }
