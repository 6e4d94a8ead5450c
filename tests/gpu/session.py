"""tests/gpu on the device, by pytest: the tests' own fixtures, parameters and plugins mean the same there as anywhere.

The plugins it takes are named, those that a machine happens to have are not loaded. With pytest-xdist the tests run in several
processes, whose kernels compile side by side; one that loses its device is replaced.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from benchmarks.gpu.part import LIMIT, ROOT, Failed, Found, Options, end_with_parent
from tools.gpu_check import wheels

_PLUGINS = ("pytest_asyncio.plugin", "pytest_timeout")
_XDIST = "xdist.plugin"
_MOST_PROCESSES = 14
_PATIENCE, _SHARE = 120.0, 0.3
"""Seconds a test may take, and how much of the part's at most: one that hangs must not take the report with it."""
_SESSION, _END = 300.0, 15.0
"""Seconds for all of them, after which pytest ends itself, and how long before the part is killed: the report is written at the
end, and a kill would leave none."""
_SAID = 300
"""Characters of an error that are kept: the log stays on a machine that may be gone."""
NOT_RUN = "not run"
"""The property by which a test says that what it is about is absent, and why: it has not passed."""
_TINY = ("tests/gpu/test_fused.py", "-k", "nothing_is_launched")


def command(options: Options, report: Path, limit: float = 0.0) -> list[str]:
    """pytest's, with a report in JUnit's format. `limit`: seconds until the part is killed; 0: it is not."""
    patience = min(_PATIENCE, _SHARE * limit) if limit else _PATIENCE
    session = max(_END, limit - _END) if limit else _SESSION
    asked = list(_TINY) if options.tiny else ["tests/gpu"]
    named = [word for plugin in _PLUGINS for word in ("-p", plugin)]
    processes = min(_MOST_PROCESSES, (os.cpu_count() or 1) - 2)
    if importlib.util.find_spec("xdist") and processes > 1 and not options.tiny:
        # By a thread: a signal's handler waits for the call of CUDA's that hangs. It ends the process, which is replaced; without
        # others beside it the report would be gone with it. The process takes along what the thread says, so the stacks are
        # written shortly before.
        named += ["-p", _XDIST, "-n", str(processes), "-o", "timeout_method=thread"]
        named += ["-o", f"faulthandler_timeout={0.9 * patience:.0f}"]
    return [
        sys.executable, "-m", "pytest", *asked, *named, "-q", "-p", "no:cacheprovider", "--junitxml", str(report),
        # Those that need a device are parts of their own.
        "-m", "not gpu", *([f"--session-timeout={session:.0f}"] if _ends_sessions() else []),
        # Libraries of other versions warn of other things.
        "-o", "filterwarnings=default",
        # The first test of a kernel waits for its compiler.
        "-o", f"timeout={patience:.0f}",
    ]  # fmt: skip


def _ends_sessions() -> bool:
    """pytest-timeout does since 2.3; a machine may have brought an older one."""
    try:
        version = importlib.metadata.version("pytest-timeout")
    except importlib.metadata.PackageNotFoundError:
        return False
    return tuple(int(part) for part in version.split(".")[:2]) >= (2, 3)


def run(options: Options, found: Found) -> None:
    """Raises Failed naming what failed."""
    for module in ("pytest", "pytest_asyncio", "pytest_timeout", "hypothesis"):
        importlib.import_module(module)  # raises ModuleNotFoundError, which names it
    with tempfile.TemporaryDirectory() as folder:
        report, limit = Path(folder, "junit.xml"), float(os.environ.get(LIMIT, "0"))
        # A thread each, beside the others: those that wait for work of a library's turn round and round meanwhile.
        env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"}
        code = subprocess.run(
            command(options, report, limit), cwd=ROOT, env=env, check=False, preexec_fn=end_with_parent
        ).returncode
        figures = counts(report)
    found(figures | {"family": family()})
    if code or figures["failed"] or not figures["passed"]:
        raise Failed(
            f"{len(figures['failed'])} of {figures['tests']} tests failed, pytest's exit code is {code}"
        )


def family() -> dict[str, str]:
    """pytest and its plugins, each with its version and the folder that it comes from: of two places, versions may not fit."""
    found = {}
    for name in wheels.FAMILY:
        try:
            one = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found[name] = f"{one.version} in {one.locate_file('')}"
    return found


def counts(report: Path) -> dict[str, Any]:
    """How many tests ran and passed, those that failed with what they said, and what was not run, and why (see NOT_RUN); zeros
    where pytest wrote nothing."""
    failed, skipped, tests = [], 0, 0
    not_run: dict[str, str] = {}
    cases = ET.parse(report).getroot().iter("testcase") if report.exists() else []
    for case in cases:
        tests += 1
        skipped += case.find("skipped") is not None
        broken = next(
            (found for kind in ("failure", "error") if (found := case.find(kind)) is not None), None
        )
        absent = next((one for one in case.iter("property") if one.get("name") == NOT_RUN), None)
        if absent is not None and broken is None:
            not_run[str(case.get("name"))] = absent.get("value") or ""
        if broken is not None:
            said = " ".join((broken.get("message") or "").split())[:_SAID]
            failed.append(f"{case.get('classname')}::{case.get('name')}" + (f": {said}" if said else ""))
    passed = tests - skipped - len(failed) - len(not_run)
    return {"tests": tests, "passed": passed, "skipped": skipped, "not_run": not_run, "failed": failed}
