"""Suites that need more than the machine has by itself: `make test-external ONLY="console ray"`, or all of them.

Each row of `SUITES` says what a suite needs, how that is fetched, and what runs. `--short` takes the form that CI has time for,
and leaves out suites that have none and, unless they are named, those whose first run is too long for CI. `--jobs N` runs N
suites beside each other and prints the output of each as a whole at its end. `--fetch` fetches what they need and runs none.
Other words go to the suite's own command: `make test-external ONLY=agents ARGS="-k codex"`.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
REPORTS = ROOT / ".reports"
PYTHON = sys.executable
Command = tuple[str, ...]

AXE = "axe-core@4.14.1"
"""Finds faults of accessibility in a page."""
SCHEMA = REPORTS / "schema-venv-0.39.0"
"""Carries the Compose specification's schema; apart from .venv, which has other versions of what it needs."""
KUBERNETES = REPORTS / "kubernetes-venv"
"""Kubernetes' schemas, apart for the same reason."""
_REAL = tuple(
    f"tests/e2e/test_{name}.py" for name in ("real_models", "real_int8", "real_gguf", "default_model")
)
_BROWSER = tuple(
    f"tests/e2e/test_{name}.py" for name in ("console", "console_chat", "console_live", "subpath")
)
_PYTEST: Command = (PYTHON, "-m", "pytest", "-m", "external")


@dataclass(frozen=True)
class Suite:
    """`packages`: Debian's. `prepare`: commands before `command`, each skipped where the file that it is paired with is there
    (None: never). `fetches`: words with which `command` fetches what else it needs, and runs nothing. `short`: what `--short`
    runs in place of `command`; None if there is no such form. `in_ci`: whether `--short`, as CI calls it, takes the suite without
    its name."""

    name: str
    what: str
    command: Command
    short: Command | None
    packages: tuple[str, ...] = ()
    prepare: tuple[tuple[Path | None, Command], ...] = ()
    fetches: Command = ()
    in_ci: bool = True


def _environment(folder: Path, package: str, program: str) -> tuple[tuple[Path | None, Command], ...]:
    """Commands that make an environment with one package."""
    made, python = folder / "bin" / program, str(folder / "bin/python")
    pip = (
        PYTHON,
        "-m",
        "pip",
        "--python",
        python,
        "--disable-pip-version-check",
        "install",
        "--quiet",
        package,
    )
    return (made, (PYTHON, "-m", "venv", "--clear", "--without-pip", str(folder))), (made, pip)


_CONSOLE: Command = (*_PYTEST, *_BROWSER, "-n2", "--dist=loadfile")
_OPS: Command = (*_PYTEST, "tests/ops")
_CLIENTS: Command = (PYTHON, "-m", "tests.clients")
_LLAMACPP: Command = (*_PYTEST, "tests/llamacpp", f"--junitxml={REPORTS / 'junit-llamacpp.xml'}")
_RAY: Command = (str(REPORTS / "ray-venv/bin/python"), "-m", "pytest", "-s", "-m", "external")
SUITES = {
    one.name: one
    for one in (
        Suite(
            "clients", "real clients, each in an environment of its own; about 8 minutes the first time", _CLIENTS,
            # Without those that install torch, and three whose installations take as long as the others together.
            (*_CLIENTS, "--without-torch", "--without", "lm-eval", "--without", "dspy", "--without", "llama-index"),
            fetches=("--install",),
        ),
        Suite(
            "console", "the console in Debian's Chromium, and behind nginx; needs npm", _CONSOLE, _CONSOLE, ("chromium", "nginx"),
            ((REPORTS / "axe/node_modules/axe-core/axe.min.js",
              ("npm", "install", "--silent", "--no-save", "--no-audit", "--no-fund", "--prefix", str(REPORTS / "axe"), AXE)),),
        ),
        Suite(
            "ops", "Prometheus, the Compose file and the Helm chart", _OPS, _OPS, ("prometheus",),
            (
                (None, (PYTHON, "-m", "tools.ops.helm", str(REPORTS / "helm"))),
                *_environment(SCHEMA, "check-jsonschema==0.39.0", "check-jsonschema"),
                *_environment(KUBERNETES, "kubernetes-validate==1.37.0", "kubernetes-validate"),
                (None, (str(SCHEMA / "bin/check-jsonschema"), "--builtin-schema=vendor.compose-spec", "docker-compose.yml")),
            ),
        ),
        Suite(
            "ray", "replicas on a real Ray: streams, killed replicas, the commands; 0.3 GB the first time", (*_RAY, "tests/ray"),
            (*_RAY, "tests/ray/test_ray_streams.py", "-k", "one_server or killed_replica or key"),
            prepare=((None, (PYTHON, "-m", "tests.ray.environment")),),
        ),
        Suite(
            "real", "trained models beside transformers, in float32, int8 and GGUF; fetches 92 and 241 MiB",
            (*_PYTEST, "-s", *_REAL), (*_PYTEST, "-s", *_REAL, "-k", "smollm2"),
        ),
        Suite(
            "llamacpp", "llama.cpp computes the same from its own files, 3 minutes; builds it the first time, 10 more", _LLAMACPP,
            (*_LLAMACPP, "--short"), prepare=((None, (PYTHON, "-m", "benchmarks.peers.llamacpp")),), in_ci=False,
        ),
        Suite(
            "agents", "Codex, Claude Code, OpenCode and Qwen Code; needs npm, fetches 1.3 GB", (*_PYTEST, "tests/agents"), None,
        ),
        Suite(
            "image", "the Dockerfile built by buildah, looked into and served from; needs root and 6 GB of disk",
            (PYTHON, "-m", "tools.ops.image_proof"), None, ("buildah", "mmdebstrap"),
        ),
    )
}  # fmt: skip
_INSTALLING = threading.Lock()
"""apt takes one caller at a time."""
_running: set[subprocess.Popen[bytes]] = set()


def run(suite: Suite, words: Sequence[str], short: bool, output: IO[bytes] | None) -> int:
    """Fetch what the suite needs and run it; the exit code of the first command that fails, or 0. `output`: where it goes,
    None for this process's own."""
    return _prepare(suite, output) or _call((*_command(suite, short), *words), output)


def fetch(suite: Suite, short: bool) -> int:
    """Fetch what the suite needs; the exit code as of `run`."""
    code = _prepare(suite, None)
    return code or (_call((*_command(suite, short), *suite.fetches), None) if suite.fetches else 0)


def _command(suite: Suite, short: bool) -> Command:
    command = suite.short if short else suite.command
    assert command is not None
    return command


def _prepare(suite: Suite, output: IO[bytes] | None) -> int:
    if suite.packages:
        with _INSTALLING:
            if code := _call(("tools/ops/packages.sh", *suite.packages), output):
                return code
    made = {path for path, _ in suite.prepare if path is not None and path.exists()}
    for path, command in suite.prepare:
        if path not in made and (code := _call(command, output)):
            return code
    return 0


def _call(command: Command, output: IO[bytes] | None) -> int:
    with subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output and subprocess.STDOUT) as process:
        _running.add(process)
        try:
            return process.wait()
        finally:
            _running.discard(process)


def run_beside(suites: Sequence[Suite], words: Sequence[str], short: bool, jobs: int) -> list[str]:
    """Run `jobs` suites at a time, and print the output of each at its end; the names of those that failed."""
    failed = []

    def captured(suite: Suite) -> tuple[Suite, int, float, IO[bytes]]:
        output = tempfile.TemporaryFile()  # noqa: SIM115
        began = time.monotonic()
        return suite, run(suite, words, short, output), time.monotonic() - began, output

    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(captured, suite) for suite in suites]):
            suite, code, seconds, output = done.result()
            print(f"==== {suite.name}: {seconds:.0f} s, exit code {code}", flush=True)
            with output:
                output.seek(0)
                shutil.copyfileobj(output, sys.stdout.buffer)
            sys.stdout.flush()
            failed += [suite.name] if code else []
    return failed


def parse(argv: Sequence[str] | None = None) -> tuple[argparse.Namespace, list[Suite], list[str]]:
    """The options, the suites and the words for their commands. Raises SystemExit for what cannot be run."""
    lines = (
        f"  {one.name:8} {one.what}{'' if one.short and one.in_ci else '; not in CI'}"
        for one in SUITES.values()
    )
    table = "\n".join(lines)
    parser = argparse.ArgumentParser(
        prog="python -m tests.external", description=f"{__doc__}\n{table}", formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument(
        "--only", default="", metavar="NAMES", help="suites, with spaces between them (default: all)"
    )
    parser.add_argument("--short", action="store_true", help="as CI runs them")
    parser.add_argument("--fetch", action="store_true", help="fetch what they need, and run none")
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="suites beside each other (default: 1)"
    )
    given, words = parser.parse_known_args(argv)
    names = given.only.split() or [
        one.name for one in SUITES.values() if (one.short and one.in_ci) or not given.short
    ]
    for name in names:
        if name not in SUITES:
            parser.error(f"there is no suite {name!r}; the suites are:\n{table}")
        if given.short and SUITES[name].short is None:
            parser.error(f"{name} has no short form")
    if words and len(names) > 1:
        parser.error(f"{' '.join(words)}: words for a suite's own command need ONLY with one suite")
    return given, [SUITES[name] for name in names], words


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 1 if a suite failed."""
    given, suites, words = parse(argv)
    signal.signal(signal.SIGTERM, _end)
    if given.fetch:
        failed = [suite.name for suite in suites if fetch(suite, given.short)]
    elif given.jobs > 1:
        failed = run_beside(suites, words, given.short, given.jobs)
    else:
        failed = [suite.name for suite in suites if run(suite, words, given.short, None)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _end(number: int, frame: object) -> None:
    """End what runs, too."""
    for process in list(_running):
        process.terminate()
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
