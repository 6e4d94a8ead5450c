"""Without a compiler or Python's headers nothing of Triton's is launched, and what takes its place says why."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from executors.kernels import triton_build
from executors.llm.attention.library import LibraryAttention, Unsuitable, over
from executors.llm.kernel_support import fp8_support, kernel_choice
from executors.llm.model.caches import KvSpec

SPEC = KvSpec(
    num_layers=1, num_heads=1, num_kv_heads=1, head_dim=64, dtype=torch.bfloat16, device=torch.device("cuda"), scale=0.1,
    softcap=None, windows=(None,),
)  # fmt: skip


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine on which kernels are to be launched, not interpreted."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.delenv("CC", raising=False)
    return monkeypatch


def test_here_is_all_it_takes(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setattr(shutil, "which", lambda name: "/usr/bin/gcc" if name == "gcc" else None)
    (tmp_path / "Python.h").touch()
    bare.setattr(sysconfig, "get_paths", lambda scheme: {"include": str(tmp_path)})
    assert triton_build.missing() is None


def test_a_compiler(bare: pytest.MonkeyPatch) -> None:
    bare.setattr(shutil, "which", lambda name: None)
    assert "gcc" in (triton_build.missing() or "")
    bare.setenv("TRITON_INTERPRET", "1")
    assert triton_build.missing() is None, "an interpreter launches nothing"


def test_headers(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("CC", "gcc")
    bare.setattr(sysconfig, "get_paths", lambda scheme: {"include": str(tmp_path)})
    assert "python3-dev" in (triton_build.missing() or "")


def test_headers_of_a_debians_own_python(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They are not where packages are installed to."""
    bare.setenv("CC", "gcc")
    paths = {name: tmp_path / name for name in ("posix_local", "posix_prefix")}
    bare.setattr(sysconfig, "get_default_scheme", lambda: "posix_local")
    bare.setattr(sysconfig, "get_paths", lambda scheme: {"include": str(paths[scheme])})
    assert f"{paths['posix_prefix']}/Python.h" in (triton_build.missing() or "")
    paths["posix_prefix"].mkdir()
    (paths["posix_prefix"] / "Python.h").touch()
    assert triton_build.missing() is None


def test_what_is_chosen_then(bare: pytest.MonkeyPatch) -> None:
    bare.setattr(triton_build, "missing", lambda: "it lacks something")
    with pytest.raises(Unsuitable, match="it lacks something"):
        kernel_choice.own_attention(SPEC)
    assert not fp8_support.has_triton(torch.device("cuda"), "auto")
    kernel: Any = SimpleNamespace(name="x")
    assert type(over("x", kernel)) is LibraryAttention
