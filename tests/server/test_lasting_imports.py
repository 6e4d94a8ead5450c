"""The garbage collector while a process imports what stays."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cohort_server.lasting_imports import lasting_imports
from executors.process.client import RemoteExecutor
from tests.executors.process.helpers import STUB, config

ROOT = Path(__file__).resolve().parents[2]

SERVE = """
import gc, os, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "server.startup.bootstrap":
            print("imported", gc.isenabled(), flush=True)
            raise SystemError("not today")

sys.meta_path.insert(0, Finder())
from server.cli import main
sys.argv = ["cohort", "serve", "--port", "0"]
try:
    main()
except SystemError:
    print("over", gc.isenabled(), gc.get_freeze_count() > 1000)
"""


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_made_inside_is_never_looked_at(fails: bool) -> None:
    try:
        with lasting_imports():
            assert not gc.isenabled()
            made = [[number] for number in range(1000)]
            looked_at = {id(one) for one in gc.get_objects()}
            assert all(id(one) in looked_at for one in made)
            if fails:
                raise ImportError
    except ImportError:
        assert fails
    assert gc.isenabled()
    looked_at = {id(one) for one in gc.get_objects()}
    assert not any(id(one) in looked_at for one in made)


@pytest.mark.usefixtures("no_collector")
def test_a_collector_that_was_off_stays_off() -> None:
    with lasting_imports():
        pass
    assert not gc.isenabled()


def test_a_server_imports_without_it() -> None:
    run = subprocess.run([sys.executable, "-c", SERVE], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.split("\n")[:2] == ["imported False", "over True True"], run.stderr


async def test_a_fork_server_imports_without_it_and_its_lives_have_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    (tmp_path / "noted.py").write_text(
        f"import gc, os\nfrom pathlib import Path\n"
        f"def note(): Path({str(seen)!r}).open('a').write(f'{{gc.isenabled()}} ')\n"
        f"note()\nos.register_at_fork(after_in_child=note)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    executor = RemoteExecutor(config(), imports=(STUB, "noted"))
    await executor.warmup()
    await executor.shutdown()
    assert seen.read_text().split() == ["False", "True"]
