"""Real clients against a live server: `python -m tests.clients [NAME ...]`.

Each client runs its checks (`check_*.py`) with its own Python, from an environment that is made when it is not there yet. The
server is this checkout's, with the embedded model in fp32 and an API key. Nothing looks at the network but pip. At the end a
table tells what ran; the exit code is 1 where a check failed, or where the server speaks of an error of its own.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers import install as vllm
from executors.tiny import weights_dir
from tests.clients.environments import ENVIRONMENTS, FOLDER, ROOT
from tests.clients.node_environment import AI_SDK
from tests.e2e.server_process import ServerProcess

HERE = Path(__file__).parent
API_KEY = "a-key-of-the-checks"
MODEL = "cohort-tiny"
TIMEOUT = 900
"""Seconds that the checks of one client may take. Most need some ten; the longest is guidellm's sweep."""
_TROUBLE = re.compile(r"\[(error|critical) *\]| status=5\d\d")
"""What the server's log has no line of, whatever the clients do."""


@dataclass(frozen=True)
class Client:
    """`ensure` sees to it that the client is there, and gives the Python that runs its checks. `with_torch`: so it installs
    torch."""

    name: str
    version: str
    checks: str
    ensure: Callable[[], Path]
    with_torch: bool = False


CHECKS = {
    "openai-1": "check_openai.py",
    "openai-2": "check_openai.py",
    "anthropic": "check_anthropic.py",
    "anthropic-0": "check_anthropic.py",
    "langchain": "check_langchain.py",
    "litellm": "check_litellm.py",
    "openai-agents": "check_openai_agents.py",
    "pydantic-ai": "check_pydantic_ai.py",
    "mistralai": "check_mistralai.py",
    "ollama": "check_ollama.py",
    "instructor": "check_instructor.py",
    "llama-index": "check_llama_index.py",
    "haystack": "check_haystack.py",
    "dspy": "check_dspy.py",
    "lm-eval": "check_lm_eval.py",
    "guidellm": "check_guidellm.py",
}
"""The checks of each environment, in the order in which they run."""


def clients() -> dict[str, Client]:
    """All there are, in the order in which they run. The last is by far the largest to install."""
    found = [
        # The major version that the main environment has: nothing to install.
        Client("openai-3", version("openai"), "check_openai.py", lambda: Path(sys.executable)),
    ]
    found.append(Client(AI_SDK.name, AI_SDK.version, "check_ai_sdk.py", AI_SDK.ensure))
    for name, checks in CHECKS.items():
        one = ENVIRONMENTS[name]
        found.append(Client(name, one.version, checks, one.ensure, one.with_torch))
    found.append(Client("vllm-bench", vllm.VERSION, "check_vllm_bench.py", _with_vllm, with_torch=True))
    return {client.name: client for client in found}


def _with_vllm() -> Path:
    """Its checks start a command and need no Python of their own: vLLM's environment stays as it is."""
    vllm.ensure()
    return Path(sys.executable)


@dataclass(frozen=True)
class Outcome:
    """What a client's checks have come to; `install` and `seconds` are times."""

    client: Client
    tests: int
    failed: int
    install: float
    seconds: float

    @property
    def line(self) -> str:
        result = f"{self.failed} FAILED" if self.failed else "passed"
        name, which = self.client.name, self.client.version
        return (
            f"{name:<13} {which:<10} {self.tests:>5}  {result:<10} {self.seconds:>7.1f} {self.install:>8.1f}"
        )


def environment(url: str) -> dict[str, str]:
    """Of the checks: where the server is, and no look at the network."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("COHORT_", "OPENAI_", "ANTHROPIC_"))
    }
    return {
        **kept,
        "CLIENT_URL": url,
        "CLIENT_API_KEY": API_KEY,
        "CLIENT_MODEL": MODEL,
        "CLIENT_MODEL_DIR": str(weights_dir()),
        "CLIENT_MAIN_PYTHON": sys.executable,
        "CLIENT_VLLM": str(vllm.folder() / "bin/vllm"),
        "CLIENT_NODE_MODULES": str(AI_SDK.folder),
        # Ten otherwise, each of which loads torch.
        "GUIDELLM__MAX_WORKER_PROCESSES": "2",
        # It looks for its end whenever nothing has come for this many seconds, 0.1 otherwise. Its end is declared by one thread
        # just before that hands on the last result, so a look between the two loses the result: seven requests of eight, none
        # failed. With results every tenth of a second there is no look while they come.
        "GUIDELLM__MP_POLL_INTERVAL": "1",
        "HF_HOME": str(FOLDER / "hf"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "LANGSMITH_TRACING": "false",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_TELEMETRY": "False",
        "HAYSTACK_TELEMETRY_ENABLED": "False",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


@dataclass(frozen=True)
class Installed:
    """A client's Python and the seconds it took to install; `failure` where it could not be."""

    python: Path | None
    seconds: float
    failure: str = ""


def install(client: Client) -> Installed:
    """Install the client where it is not."""
    started = time.monotonic()
    try:
        return Installed(client.ensure(), time.monotonic() - started)
    except subprocess.CalledProcessError as error:
        return Installed(None, time.monotonic() - started, str(error))


def run(client: Client, installed: Installed, url: str, words: list[str]) -> Outcome:
    """Run the client's checks."""
    print(f"\n== {client.name} {client.version}", flush=True)
    if installed.python is None:
        print(f"{client.name}: not installed: {installed.failure}", flush=True)
        return Outcome(client, 0, 1, installed.seconds, 0)
    started = time.monotonic()
    report = FOLDER / f"{client.name}.xml"
    report.unlink(missing_ok=True)
    command = [
        str(installed.python), "-m", "pytest", "-c", str(HERE / "pytest.ini"), "-q", f"--junitxml={report}",
        str(HERE / client.checks), *words,
    ]  # fmt: skip
    try:
        code = subprocess.run(command, cwd=ROOT, env=environment(url), timeout=TIMEOUT).returncode
    except subprocess.TimeoutExpired:
        print(f"{client.name}: not done after {TIMEOUT} s", flush=True)
        code = 1
    tests, failed = counted(report)
    # Without a report, or without a test that failed in it, the run itself did.
    failed = failed or (1 if code else 0)
    return Outcome(client, tests, failed, installed.seconds, time.monotonic() - started)


def counted(report: Path) -> tuple[int, int]:
    """Tests and failures of a junit file; nothing where there is none."""
    if not report.exists():
        return 0, 0
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    tests = sum(int(suite.get("tests", 0)) for suite in suites)
    return tests, sum(int(suite.get(kind, 0)) for suite in suites for kind in ("failures", "errors"))


def main() -> int:
    """Run, print the table, and return the exit code."""
    known = clients()
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; all of them otherwise"
    )
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help="all but this one")
    parser.add_argument("--without-torch", action="store_true", help="all but those that install torch")
    parser.add_argument("--install", action="store_true", help="install them, and check nothing")
    parser.add_argument("-k", dest="expression", metavar="WORDS", help="pytest's -k")
    arguments = parser.parse_args()
    if unknown := {*arguments.names, *arguments.without} - known.keys():
        parser.error(f"there is no client {', '.join(sorted(unknown))}")
    chosen = [known[name] for name in arguments.names or known if name not in arguments.without]
    chosen = [one for one in chosen if not (arguments.without_torch and one.with_torch)]
    words = ["-k", arguments.expression] if arguments.expression else []
    FOLDER.mkdir(parents=True, exist_ok=True)
    if arguments.install:
        failures = [f"{one.name}: {failure}" for one in chosen if (failure := install(one).failure)]
        print(*failures, sep="\n")
        return 1 if failures else 0
    arguments = [
        "cohort-tiny",
        "--dtype",
        "float32",
        "--api-key",
        API_KEY,
        "--model-alias",
        f"claude-*={MODEL}",
    ]
    # One client is installed, which mostly waits for the index, while the checks of the one before it run.
    with (
        ThreadPoolExecutor(1) as installer,
        ServerProcess(arguments, FOLDER, env={"HF_HUB_OFFLINE": "1"}) as server,
    ):
        waiting = [(client, installer.submit(install, client)) for client in chosen]
        outcomes = [run(client, installed.result(), server.url, words) for client, installed in waiting]
        troubles = [line for line in server.log().splitlines() if _TROUBLE.search(line)]
    print(*troubles, sep="\n")
    print(f"\n{'client':<13} {'version':<10} {'tests':>5}  {'result':<10} {'seconds':>7} {'install':>8}")
    print("\n".join(outcome.line for outcome in outcomes))
    return 1 if troubles or any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
