"""Empty variables that libraries would take at their word are not set."""

import json
import os
import subprocess
import sys
from pathlib import Path

from cohort_server import run
from server.system.environment import drop_empty, tokenize_in_one_thread, without_empty


def test_empty_variables_of_libraries_are_dropped() -> None:
    environ = {
        "HF_HOME": "",
        "HF_TOKEN": "",
        "XDG_CACHE_HOME": "",
        "TMPDIR": "",
        "HF_ENDPOINT": "https://hub",
        "PATH": "",
    }
    assert without_empty(environ) == {"HF_ENDPOINT": "https://hub", "PATH": ""}
    drop_empty(environ)
    assert environ == {"HF_ENDPOINT": "https://hub", "PATH": ""}


def test_an_empty_list_of_gpus_hides_them() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    assert without_empty(environ) == environ


def test_the_command_does_so_before_it_imports_anything() -> None:
    code = (
        "import os, json, sys; from server import cli\n"
        "import cohort_server.command_line as line\n"
        "line.main = lambda: print(json.dumps([name for name in ('HF_HOME', 'HF_TOKEN') if name in os.environ]))\n"
        "cli.main()"
    )
    environ = {**os.environ, "HF_HOME": "", "HF_TOKEN": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=True
    )
    assert json.loads(done.stdout) == []


def closed(redirections: str, code: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'exec "$0" -c "$1" "$2" {redirections}', sys.executable, code]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=cwd, check=False)


def test_closed_standard_streams_are_not_taken_by_sockets(tmp_path: Path) -> None:
    for number, redirections in enumerate(("<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-")):
        told = tmp_path / f"{number}"
        code = (
            "from cohort_server.standard_streams import open_standard_streams as first; first()\n"
            "import os, socket, subprocess, sys\n"
            "print('to stdout', flush=True); print('to stderr', file=sys.stderr); sys.stderr.isatty(); sys.stdin.read(0)\n"
            "child = subprocess.run([sys.executable, '-c', 'import os; [os.fstat(n) for n in (0, 1, 2)]'])\n"
            f"open({str(told)!r}, 'w').write(f'{{socket.socket().fileno() > 2}} {{child.returncode}}')"
        )
        assert closed(redirections, code).returncode == 0
        assert told.read_text() == "True 0", redirections


def test_a_stream_that_is_open_stays() -> None:
    code = (
        "import sys; before = sys.stdin, sys.stdout, sys.stderr\n"
        "from cohort_server.standard_streams import open_standard_streams as first; first()\n"
        "assert (sys.stdin, sys.stdout, sys.stderr) == before; print('out'); print('err', file=sys.stderr)"
    )
    done = closed("", code)
    assert (done.stdout, done.stderr) == ("out\n", "err\n")


def test_a_removed_working_directory_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    code = (
        "import os, sys; os.rmdir(os.getcwd()); from cohort_server.working_directory import leave_removed_directory as leave\n"
        "leave(); print(os.getcwd())"
    )
    assert closed("", code, folder).stdout == "/\n"
    assert (
        closed("", code.replace("os.rmdir(os.getcwd()); ", ""), tmp_path).stdout == f"{tmp_path.resolve()}\n"
    )


def test_a_child_process_leaves_it_too(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    code = "import os, sys; os.rmdir(os.getcwd()); os.execv(sys.argv[1], sys.argv[1:])"
    (tmp_path / "own.py").write_text("")
    child = [*run.command("server.system.paths"), "x"]
    done = subprocess.run(
        [sys.executable, "-c", code, *child], capture_output=True, text=True, cwd=folder, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_users_choice_of_threads_for_tokenizers_stays() -> None:
    chosen, unset = {"TOKENIZERS_PARALLELISM": "true"}, dict[str, str]()
    for one in (chosen, unset):
        tokenize_in_one_thread(one)
    assert chosen == {"TOKENIZERS_PARALLELISM": "true"}
    assert unset == {"TOKENIZERS_PARALLELISM": "false"}
