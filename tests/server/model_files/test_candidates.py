"""Which of several GGUF files is served."""

from __future__ import annotations

import pytest

from executors import cgroup
from executors.contract import ConfigError
from server.model_files import candidates as module
from server.model_files.candidates import Candidate, candidates, choose, model_stem, quantization_in

MIB, GIB = 1 << 20, 1 << 30


def pick(sizes: dict[str, int], wanted: str | None = None) -> Candidate:
    return choose("acme/x", candidates(sizes), wanted, lambda one: one.name)


def test_mmproj_files_and_later_parts_are_no_candidates() -> None:
    sizes = {
        "mmproj-x-F16.gguf": 5, "x-Q4_0-00001-of-00002.gguf": 7, "x-Q4_0-00002-of-00002.gguf": 8,
        "lost-00002-of-00002.gguf": 9, "README.md": 1,
    }  # fmt: skip
    [one] = candidates(sizes)
    assert one == Candidate(
        "x-Q4_0-00001-of-00002.gguf", ("x-Q4_0-00001-of-00002.gguf", "x-Q4_0-00002-of-00002.gguf"), 15
    )
    assert pick(sizes) == one


def test_of_several_q4_k_m() -> None:
    sizes = {"x-Q8_0.gguf": 9, "x-Q4_K_M.gguf": 5, "x-Q4_K_S.gguf": 4}
    assert pick(sizes).name == "x-Q4_K_M.gguf"
    assert pick(sizes, "q8_0").name == "x-Q8_0.gguf"


def test_a_mixture_by_its_whole_name() -> None:
    sizes = {"x-UD-Q4_K_XL.gguf": 1, "x-Q4_K_M.gguf": 2, "x-IQ4_XS.gguf": 3}
    assert pick(sizes, "UD-Q4_K_XL").name == pick(sizes, "Q4_K_XL").name == "x-UD-Q4_K_XL.gguf"
    assert pick(sizes, "iq4_xs").name == "x-IQ4_XS.gguf"


def test_a_choice_is_listed_with_sizes_and_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.cgroup, "memory_limit", lambda: cgroup.MemoryLimit(8 * GIB, 6 * GIB))
    sizes = {"x-Q8_0.gguf": int(9.1 * GIB), "x-Q4_0.gguf": 300 * MIB}
    with pytest.raises(ConfigError) as error:
        pick(sizes)
    assert str(error.value) == (
        "acme/x holds 2 GGUF models; name one of them: x-Q4_0.gguf (300 MiB, fits), "
        "x-Q8_0.gguf (9.1 GiB, does not fit into 6.0 GiB of free memory)"
    )
    with pytest.raises(ConfigError, match=r"^acme/x has no GGUF file Q2_K; name one of them: x-Q4_0"):
        pick(sizes, "Q2_K")
    same = {"a-Q4_K_M.gguf": 1, "b-Q4_K_M.gguf": 1}
    with pytest.raises(ConfigError, match="holds 2 GGUF models"):
        pick(same)
    with pytest.raises(ConfigError, match="has 2 GGUF files Q4_K_M"):
        pick(same, "Q4_K_M")


def test_names() -> None:
    assert quantization_in("Llama-3.2-1B-Instruct-Q6_K_L.gguf") == "Q6_K_L"
    assert quantization_in("SmolLM2-135M-Instruct.Q4_1.gguf") == "Q4_1"
    assert quantization_in("model.gguf") is None
    assert model_stem("big-Q4_0-00001-of-00003.gguf") == "big-Q4_0"
