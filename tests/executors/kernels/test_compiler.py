"""Compiling at first use: once per source, flags and compiler; nowhere that others can write; and what happens without."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from executors.cgroup import MemoryLimit
from executors.kernels import compiler
from executors.kernels.compile_lock import Workspace
from executors.kernels.compile_run import Command, TimeLimit
from executors.kernels.compiler import ISAS, Isa, KernelUnavailable, compiled, library, usable_isas

HERE = usable_isas()[:1]
on_this_cpu = pytest.mark.parametrize("isa", HERE, ids=lambda isa: isa.name)
with_compiler = pytest.mark.parametrize("isa", HERE if shutil.which("g++") else (), ids=lambda isa: isa.name)
SMALL = 'extern "C" int answer() { return 42; }\n'


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for each test; where it is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    library.cache_clear()
    yield tmp_path / "cache" / "cohort" / "kernels"
    library.cache_clear()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "small.cpp"
    path.write_text(SMALL)
    return path


@with_compiler
def test_compiles_once_and_loads(isa: Isa, cache: Path, source: Path) -> None:
    loaded, name = library(source)
    assert loaded.answer() == 42 and name == isa.name
    [made] = cache.iterdir()
    assert made.name.startswith(f"small-{name}-") and stat.S_IMODE(cache.stat().st_mode) == 0o700
    before = made.stat().st_mtime_ns
    library.cache_clear()
    library(source)
    assert [path.stat().st_mtime_ns for path in cache.iterdir()] == [before]


PARTS = {
    "small_first.cpp": '#include "shared.h"\nint first() { return 40; }\n',
    "small_second.cpp": 'extern "C" int second() { return 2; }\n',
}


@pytest.fixture
def in_parts(source: Path) -> Path:
    """A library of three parts: one calls another's function, and one exports a function of its own."""
    (source.parent / "shared.h").write_text("int first();\n")
    source.write_text('#include "shared.h"\nextern "C" int answer() { return first() + 2; }\n')
    for name, text in PARTS.items():
        (source.parent / name).write_text(text)
    (source.parent / "smaller.cpp").write_text("is no part")
    return source


@with_compiler
def test_parts_make_one_library(
    isa: Isa, cache: Path, in_parts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    loaded, _ = library(in_parts)
    assert (loaded.answer(), loaded.second()) == (42, 2)
    [made] = cache.iterdir()
    assert made.name.startswith("small-") and made.suffix == ".so"
    assert f"compiling small.cpp for {isa.name} with g++" in caplog.text


@with_compiler
def test_every_part_is_in_the_name(isa: Isa, in_parts: Path) -> None:
    names = {compiled(in_parts, isa).name}
    for name, text in PARTS.items():
        (in_parts.parent / name).write_text(text + "// changed\n")
        names.add(compiled(in_parts, isa).name)
    assert len(names) == 1 + len(PARTS)


@with_compiler
def test_the_part_that_fails_is_named(isa: Isa, cache: Path, in_parts: Path) -> None:
    (in_parts.parent / "small_second.cpp").write_text("int broken( {\n")
    with pytest.raises(KernelUnavailable, match=r"g\+\+ failed: small_second.cpp: .*error"):
        library(in_parts)
    assert not list(cache.iterdir())


@with_compiler
def test_a_library_that_lacks_a_part_is_no_kernel(isa: Isa, in_parts: Path) -> None:
    (in_parts.parent / "small_first.cpp").unlink()
    with pytest.raises(KernelUnavailable, match=r"cannot be loaded: .*undefined symbol"):
        library(in_parts)


@pytest.mark.parametrize(
    "threads, gibibytes, at_once", [(1, 64, 1), (4, 64, 4), (16, 64, 16), (16, 1, 1), (16, 2, 2), (4, 0.1, 1)]
)
def test_as_many_compilers_as_have_a_processor_and_memory(
    threads: int, gibibytes: float, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "cpu_threads", lambda: threads)
    limit = MemoryLimit(64 << 30, int(gibibytes * (1 << 30)))
    monkeypatch.setattr(compiler, "memory_limit", lambda: limit)
    assert compiler.compilers_at_once() == at_once


@with_compiler
def test_parts_keep_to_that_number(isa: Isa, in_parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = compiler.run, list[tuple[int, int]]()

    def noted(commands: list[Command], limit: TimeLimit, at_once: int, work: Workspace | None) -> list[str]:
        calls.append((len(commands), at_once))
        return run(commands, limit, at_once, work)

    monkeypatch.setattr(compiler, "compilers_at_once", lambda: 2)
    monkeypatch.setattr(compiler, "run", noted)
    compiled(in_parts, isa)
    assert calls[-2:] == [(3, 2), (1, 1)]


@with_compiler
def test_whether_a_start_would_compile(
    isa: Isa, cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not compiler.is_compiled(source) and not list(cache.iterdir())
    compiled(source, isa)
    assert compiler.is_compiled(source) and compiler.is_compiled(source, isa.name)
    source.write_text(SMALL + "// changed\n")
    assert not compiler.is_compiled(source)
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert compiler.is_compiled(source), "none can be made"


@with_compiler
def test_source_flags_and_compiler_are_in_the_name(
    isa: Isa, cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {compiled(source, each).name for each in usable_isas()}
    source.write_text(SMALL + "// changed\n")
    names.add(compiled(source, isa).name)
    monkeypatch.setattr(compiler, "_version", lambda command: "another")
    names.add(compiled(source, isa).name)
    assert len(names) == len(usable_isas()) + 2 == len(list(cache.iterdir()))


@with_compiler
def test_a_failed_compile_says_so_and_leaves_nothing(isa: Isa, cache: Path, source: Path) -> None:
    source.write_text("int broken( {\n")
    with pytest.raises(KernelUnavailable, match=r"g\+\+ failed: .*error"):
        library(source)
    assert not list(cache.iterdir())
    source.write_text(SMALL)
    assert library(source)[0].answer() == 42  # another source


@with_compiler
def test_a_damaged_library_is_no_kernel(isa: Isa, cache: Path, source: Path) -> None:
    compiled(source, isa).write_bytes(b"not a library")
    with pytest.raises(KernelUnavailable, match="cannot be loaded"):
        library(source)


@on_this_cpu
def test_without_a_compiler(isa: Isa, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KernelUnavailable, match=r"no C\+\+ compiler found \(install g\+\+\)"):
        library(source)


@on_this_cpu
def test_a_compiler_that_hangs_or_fails_is_left(
    isa: Isa, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "fake-cxx"
    child = tmp_path / "child"
    fake.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo fake && exit\nsleep 30 & echo $! > {child}\nwait\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    monkeypatch.setattr(compiler, "TIMEOUT_S", 0.3)
    with pytest.raises(
        KernelUnavailable,
        match=r"fake-cxx timed out: compiling small.cpp for .* took more than 0.3 s. Compile .* beforehand|next",
    ):
        library(source)
    state = Path("/proc", child.read_text().strip(), "stat")
    deadline = time.monotonic() + 10
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "what the compiler started goes on"
        time.sleep(0.01)
    fake.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(KernelUnavailable, match="fake-cxx failed: no message, exit code 1"):
        library(source)


@on_this_cpu
def test_a_failed_compilation_is_not_waited_for_twice(
    isa: Isa, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linear layers and attention want the same library: a hanging compiler would hold the start up once for each."""
    fake, runs = tmp_path / "fake-cxx", tmp_path / "runs"
    fake.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo fake && exit\necho run >> {runs}\nexec sleep 30\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    monkeypatch.setattr(compiler, "TIMEOUT_S", 0.3)
    for _ in range(2):
        with pytest.raises(KernelUnavailable, match="fake-cxx timed out"):
            library(source)
    assert runs.read_text() == "run\n"


@with_compiler
def test_cxx_is_asked_first(isa: Isa, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++ -DUNUSED")
    assert compiler.find_compiler() == ["g++", "-DUNUSED"] and library(source)[0].answer() == 42
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert compiler.find_compiler() == ["g++"]


@pytest.mark.parametrize("how", ["open", "link", "file", "elsewhere"])
def test_a_cache_that_is_not_ours_alone_is_not_used(
    how: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.parent.mkdir(parents=True)
    if how == "open":
        cache.mkdir()
        cache.chmod(0o777)
    elif how == "link":
        (tmp_path / "other").mkdir(mode=0o700)
        cache.symlink_to(tmp_path / "other")
    elif how == "file":
        cache.write_text("")
    else:
        cache.mkdir(mode=0o700)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    folder = compiler.cache_folder()
    assert folder != cache and stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder == compiler.cache_folder()


def test_a_read_only_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/proc")  # read-only, for root too
    folder = compiler.cache_folder()
    assert os.access(folder, os.W_OK) and not str(folder).startswith("/proc")


def test_instruction_sets_come_from_the_cpus_flags(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"

    def found(flags: set[str] | frozenset[str]) -> list[str]:
        info.write_text(f"processor\t: 0\nflags\t\t: fpu {' '.join(sorted(flags))} extra\n")
        return [isa.name for isa in usable_isas(info)]

    best, vnni, middle, least = ISAS
    if HERE:
        assert found(best.needs) == ["avx512_bf16", "avx512_vnni", "avx512", "avx2"]
        assert found(vnni.needs) == ["avx512_vnni", "avx512", "avx2"]
        assert found(middle.needs) == ["avx512", "avx2"]
        assert found(least.needs) == ["avx2"]
    assert found({"sse4_2"}) == [] == found(least.needs - {"fma"})
    assert usable_isas(tmp_path / "missing") == ()


def test_other_architectures_have_none(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.platform, "machine", lambda: "aarch64")
    assert usable_isas() == ()
    with pytest.raises(KernelUnavailable, match="no kernel for this CPU"):
        library(source)


def test_an_unknown_instruction_set(source: Path) -> None:
    if HERE:
        with pytest.raises(KernelUnavailable, match="this CPU has no avx9"):
            library(source, "avx9")


PARALLEL = """
extern "C" int answer() {
    int sum = 0;
    #pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < 42; i++) sum++;
    return sum;
}
"""
CHILD = """
import sys, time
from pathlib import Path
from executors.kernels.compiler import library
while time.time() < float(sys.argv[2]): pass
assert library(Path(sys.argv[1]))[0].answer() == 42
found = {line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line or "libomp" in line or "libiomp" in line}
print(len(found), *found)
"""


@with_compiler
@pytest.mark.long
def test_two_processes_at_once_share_torchs_openmp(isa: Isa, cache: Path, source: Path) -> None:
    source.write_text(PARALLEL)
    begin = str(time.time() + 2.0)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, source, begin], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
        )
        for _ in range(2)
    ]
    for child in children:
        out, _ = child.communicate(timeout=50)
        assert child.returncode == 0
        count, *paths = out.split()
        assert count == "1" and "torch" in paths[0], out
    assert len(list(cache.glob("*.so"))) == 1 == len(list(cache.iterdir()))


@with_compiler
def test_prebuilt_variants_need_no_compiler(
    isa: Isa, cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = compiler.prebuild(source, source.parent / "prebuilt")
    assert [path.name.split("-")[1] for path in made] == [each.name for each in ISAS]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o644 for path in made)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert library(source)[0].answer() == 42
    assert compiled(source, isa) in made and not list(cache.iterdir())
    source.write_text(SMALL + "// changed\n")  # what was built of another source is not taken
    library.cache_clear()
    with pytest.raises(KernelUnavailable, match="no C\\+\\+ compiler"):
        library(source)


@with_compiler
def test_a_prebuilt_kernel_is_what_would_be_compiled_here(
    isa: Isa, cache: Path, source: Path, tmp_path: Path
) -> None:
    """Byte for byte, by the same compiler: a wheel computes as fast as a checkout, and the same."""
    [prebuilt] = [
        made for made in compiler.prebuild(source, tmp_path / "folder") if f"-{isa.name}-" in made.name
    ]
    here = compiled(source, isa)
    assert here.parent == cache and prebuilt.read_bytes() == here.read_bytes()
    before = {made: made.stat().st_mtime_ns for made in (tmp_path / "folder").iterdir()}
    assert {
        made: made.stat().st_mtime_ns for made in compiler.prebuild(source, tmp_path / "folder")
    } == before


@with_compiler
def test_what_is_in_the_cache_is_not_compiled_again(
    isa: Isa, cache: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there for this compiler; for another one every variant is compiled."""
    here, compile_ = compiled(source, isa), compiler._compile
    compiled_for: list[str] = []

    def noted(command: list[str], source: Path, isa: Isa, limit_s: float | None, work: Workspace) -> Path:
        compiled_for.append(isa.name)
        return compile_(command, source, isa, limit_s, work)

    monkeypatch.setattr(compiler, "_compile", noted)
    made = compiler.prebuild(source, tmp_path / "folder")
    assert compiled_for == [each.name for each in ISAS if each != isa]
    [copy] = [one for one in made if f"-{isa.name}-" in one.name]
    assert copy.read_bytes() == here.read_bytes() and stat.S_IMODE(copy.stat().st_mode) == 0o644
    monkeypatch.setattr(compiler, "_version", lambda command: "another")
    compiler.prebuild(source, tmp_path / "other")
    assert compiled_for[len(ISAS) - 1 :] == [each.name for each in ISAS]


@with_compiler
def test_prebuilding_needs_no_torch(isa: Isa, tmp_path: Path) -> None:
    """An image builds the kernels in a stage that has Python and a compiler, and nothing else."""
    code = "import sys; sys.modules['torch'] = None\nfrom executors.kernels import compiler\nprint(compiler.find_compiler())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50
    )
    assert "g++" in done.stdout


def test_elsewhere_there_is_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image for another architecture copies it all the same."""
    monkeypatch.setattr(compiler.platform, "machine", lambda: "aarch64")
    compiler.main(str(tmp_path / "prebuilt"))
    assert list((tmp_path / "prebuilt").iterdir()) == []
