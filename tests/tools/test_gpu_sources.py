"""Which files a part ran: recorded as it imports them, whatever ends it, in the processes that it starts, too."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.part import Options
from tools.gpu_check import process, sources
from tools.gpu_check.sources import ROOT

CHILD = """
import os, signal, subprocess, sys
import executors.contract.errors
subprocess.run([sys.executable, "-c", "import engine.refusal"], check=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def ran(text: str, folder: Path, **more: str) -> sources.Sources:
    modules = folder / "modules"
    env = process.environment(Options("cpu"), None) | {sources.VARIABLE: str(modules)} | more
    subprocess.run([sys.executable, "-c", text], cwd=folder, env=env, check=False, capture_output=True)
    return sources.of_modules(modules)


def test_a_killed_process_and_its_child_have_told_what_they_imported(tmp_path: Path) -> None:
    found = ran(CHILD, tmp_path)
    assert {"executors/contract/errors.py", "executors/__init__.py", "engine/refusal.py"} <= found.keys()
    assert "engine/core/loop.py" not in found and not any("sitecustomize" in path for path in found)
    assert all(len(digest) == 8 for digest in found.values())


def test_what_is_compiled_at_run_time_belongs_to_the_module_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "modules").write_text("executors.kernels.cpu\n")
    found = sources.of_modules(tmp_path / "modules")
    names = {"cohort_cpu.cpp", "cohort_cpu_attention.cpp", "forward.h"}
    assert {f"executors/kernels/{name}" for name in names} <= found.keys()
    (tmp_path / "modules").write_text("executors.kernels.triton.few_rows\n")
    assert list(sources.of_modules(tmp_path / "modules")) == ["executors/kernels/triton/few_rows.py"]


def test_the_recorder_knows_every_package_of_the_project() -> None:
    text = (sources.RECORDER / "sitecustomize.py").read_text()
    [known] = [
        set(ast.literal_eval(node.value.args[0]))  # type: ignore[attr-defined]
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PACKAGES"
    ]
    tracked = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    folders = {path.split("/")[0] for path in tracked.stdout.split() if "/" in path}
    assert {name for name in folders if (ROOT / name / "__init__.py").exists()} <= known
    assert all((ROOT / name).is_dir() for name in known)


def test_the_machines_own_module_of_that_name_is_run_too(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import os\nos.environ['OWN'] = 'run'\n")
    env = process.environment(Options("cpu"), None)
    env["PYTHONPATH"] += f"{os.pathsep}{tmp_path / 'own'}"
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(os.environ['OWN'])"], env=env, capture_output=True, text=True
    )
    assert done.stdout == "run\n", done.stderr


def test_changed_files_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "engine" / "core"
    folder.mkdir(parents=True)
    for name in ("engine/__init__.py", "engine/core/a.py", "engine/core/b.py", "engine/notes.txt"):
        (tmp_path / name).write_text(f"x = {name!r}\n")
    (tmp_path / "modules").write_text("engine\nengine.core\nengine.core.a\nengine.core.a\nengine.nowhere\n")
    found = sources.of_modules(tmp_path / "modules", ["engine/core/b.py", "engine"], tmp_path)
    assert list(found) == ["engine/__init__.py", "engine/core/a.py", "engine/core/b.py"]
    found = sources.of_modules(tmp_path / "modules", (), tmp_path)
    assert list(found) == ["engine/__init__.py", "engine/core/a.py"]
    assert sources.flat(sources.nested(found)) == found
    assert sources.nested(found)["engine/core"] == {"a.py": found["engine/core/a.py"]}
    assert sources.changed(found, tmp_path) == []
    (folder / "b.py").write_text("x = 2\n")
    assert sources.changed(found, tmp_path) == [], "not one of them"
    (folder / "a.py").write_text("x = 2\n")
    (tmp_path / "engine" / "__init__.py").unlink()
    assert sources.changed(found, tmp_path) == ["engine/__init__.py", "engine/core/a.py"]
    assert sources.of_modules(tmp_path / "none", (), tmp_path) == {}


def test_files_at_the_root_have_no_folder() -> None:
    assert sources.flat(sources.nested({"a.py": "1", "b/c.py": "2"})) == {"a.py": "1", "b/c.py": "2"}
