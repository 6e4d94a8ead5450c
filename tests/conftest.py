"""What every test can rely on: no network look-ups, no settings leaking in, no GPU tests without a GPU."""

import atexit
import gc
import os
import shutil
import signal
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests import compiled_kernels, tiers
from tests.authorities import read_authorities_once

# Until all tests are collected: what that makes stays.
gc.disable()

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
for name in [name for name in os.environ if name.startswith("COHORT_")]:
    del os.environ[name]

# A server without a model serves the best one on this disk: for tests there is none but the default.
os.environ.pop("HF_HUB_CACHE", None)
for name in ("HF_HOME", "LM_STUDIO_MODELS", "OLLAMA_MODELS", "LLAMA_CACHE"):
    os.environ[name] = str(
        Path(tempfile.gettempdir()) / f"cohort-tests-{os.getuid()}-no-models" / name.lower()
    )

# A run that a shell put into the background, or `nohup`, ignores these, and so would every process that a test starts.
for number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

read_authorities_once()

# Servers name themselves to `cohort ps`, `run` and `stop` here: those of another test process, or of the developer, are none of
# a test's business.
os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="cohort-tests-run-")
atexit.register(shutil.rmtree, os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)

# The time-out per test is pytest's; the examples are the same in every run.
tiers.load_profile(few=False)


# asyncio reports a failed task when it is collected, and the carets of the report's traceback take `ast.parse`. Where that comes
# in the middle of another `ast.parse`, of whatever test, CPython 3.11 raises a SystemError (gh-106905).
if hasattr(traceback, "_extract_caret_anchors_from_line_segment"):
    traceback._extract_caret_anchors_from_line_segment = lambda _: None


# A traceback of this process is told as a server tells its own: structlog's usual form, with all local variables, takes a second.
structlog.get_config()["processors"][-1].exception_formatter = structlog.dev.plain_traceback


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    """No test leaves the garbage collector off for those behind it."""
    assert gc.isenabled()
    yield
    assert gc.isenabled()


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is gone was let go of: the garbage collector does not come."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sweeps", action="store_true", help="run all cases of the sweeps, and nothing else")
    parser.addoption(
        "--short", action="store_true", help="as CI: without variants, which `long(extended=True)` and `long(every=n)` mark"
    )  # fmt: skip
    parser.addoption(
        "--few", action="store_true", help="as `make test`: fewer cases of sweeps and examples of Hypothesis"
    )
    parser.addoption(
        "--full", action="store_true", help="also the tests at full size, marked `long(full=True)`"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.few:
        tiers.load_profile(few=True)


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    jobs = config.getoption("numprocesses", None)
    if compiled_kernels.of_a_run(config.args, jobs, hasattr(config, "workerinput")):
        if not compiled_kernels.are_compiled():
            print("compiling the CPU kernels of every instruction set (once; a minute or two)", flush=True)
        compiler = compiled_kernels.begin_to_compile()
        try:
            compiler.wait()
        finally:
            compiled_kernels.end(compiler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of which `-m` leaves out every test are not imported. One that is named by itself is."""
    if not collection_path.match("test_*.py") or any(
        word.endswith(".py") or "::" in word for word in config.args
    ):
        return None
    return tiers.has_no_test(collection_path.read_text("utf-8"), config.option.markexpr) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    options = config.option
    if options.collectonly and not (options.sweeps or options.short or options.full):
        return
    kept = items
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        kept = [item for item in items if item.get_closest_marker("gpu") is None]
    # A test that is named by itself is run.
    if options.sweeps or not any("::" in word for word in config.args):
        kept = tiers.chosen(kept, options.sweeps, options.short, options.full, options.few)
    left_out = {*items} - {*kept}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = kept


def pytest_collection_finish() -> None:
    """Modules and tests of a whole run are millions of objects, which a full collection would look at again and again: one takes
    a second or more, and what measures time or asks for a collection has several. So there is none here either."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def loggers_that_can_be_captured() -> Iterator[None]:
    """A logger that was cached under one configuration keeps its level for the rest of the process, and `LLM` configures loggers
    in the test's own."""
    configure = structlog.configure

    def without_cache(**settings: Any) -> None:
        configure(**settings | {"cache_logger_on_first_use": False})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structlog, "configure", without_cache)
        yield


@pytest.fixture(autouse=True, scope="module")
def loggers_as_they_were() -> Iterator[None]:
    """The level that a module's tests configured hides no lines from the next module's."""
    yield
    structlog.reset_defaults()
