"""What `make test-external ONLY=image` looks for in an image is found where it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools.ops import image_files
from tools.ops.image import ImageConfig

CONFIG = ImageConfig(
    {}, "/var/lib/cohort", "10001:10001", [], [], [], {}, "SIGTERM", '{"history": ["RUN x"]}'
)


def made(root: Path, name: str, text: str = "", mode: int = 0o644) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_compilers_and_linkers(tmp_path: Path) -> None:
    for name in (
        "usr/bin/x86_64-linux-gnu-g++-12",
        "usr/lib/gcc/12/cc1plus",
        "usr/bin/clang-15",
        "usr/bin/ld.bfd",
        "opt/ptxas",
    ):
        made(tmp_path, name, mode=0o755)
    (tmp_path / "usr/bin/cc").symlink_to("/etc/alternatives/cc")
    (tmp_path / "usr/bin/ld.so").symlink_to("/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2")
    for name in (
        "usr/share/doc/gcc-12-base",
        "usr/lib/ld-linux-x86-64.so.2",
        "usr/bin/basename",
        "opt/model.cc",
    ):
        made(tmp_path, name)
    (tmp_path / "usr/share/gcc").mkdir()
    names = {Path(name).name for name in image_files.compilers(tmp_path)}
    assert names == {"x86_64-linux-gnu-g++-12", "cc1plus", "clang-15", "ptxas", "ld.bfd", "cc"}


def test_what_a_build_leaves_behind(tmp_path: Path) -> None:
    left = {
        "root/.cache",
        "var/cache/apt/archives/a.deb",
        "var/lib/apt/lists/deb_Packages",
        "tmp/x",
        "opt/build",
    }
    for name in (
        "root/.cache/pip/x",
        *(left - {"root/.cache", "opt/build"}),
        "opt/build/bin/pip",
        "opt/cohort/bin/x",
    ):
        made(tmp_path, name)
    assert set(image_files.left_over(tmp_path)) == left


def test_what_the_user_could_change(tmp_path: Path) -> None:
    made(tmp_path, "etc/open", mode=0o666)
    made(tmp_path, "etc/closed")
    made(tmp_path, "var/lib/cohort/own", mode=0o666)
    made(tmp_path, "tmp/any", mode=0o666)
    assert image_files.writable(tmp_path, uid=os.getuid() + 1) == ["etc/open"]
    assert "etc/closed" in image_files.writable(tmp_path, uid=os.getuid())


def test_a_file_with_two_names_counts_once(tmp_path: Path) -> None:
    os.link(made(tmp_path, "a", "12345"), tmp_path / "b")
    (tmp_path / "c").symlink_to("a")
    assert image_files.size_of(tmp_path) == 5


def test_secrets_are_found_by_place_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_this_machine")
    monkeypatch.setenv("HTTP_PROXY", "http://me:pass-word-1@proxy:3128")
    assert image_files.secrets(tmp_path, CONFIG, "canary-of-the-build") == []
    made(tmp_path, "etc/pip.conf", "# canary-of-the-build\n")
    made(tmp_path, "root/x", "http://me:pass-word-1@proxy")
    record = '{"history": ["ENV HF_TOKEN=hf_of_this_machine"]}'
    config = ImageConfig({}, "", "", [], [], [], {}, "", record)
    places = image_files.secrets(tmp_path, config, "canary-of-the-build")
    assert sorted(places) == ["HF_TOKEN in the image's record", "etc/pip.conf", "root/x"]
