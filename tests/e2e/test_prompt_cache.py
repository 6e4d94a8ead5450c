"""A prompt that a server has computed is read from disk by the next one, with the tokens of the first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.checkpoints import write_model
from tests.e2e.server_process import ServerProcess, run_until_exit

pytestmark = pytest.mark.timeout(300)
SHAPE = {
    "num_hidden_layers": 6, "hidden_size": 512, "intermediate_size": 2048, "head_dim": 64, "num_attention_heads": 8,
    "num_key_value_heads": 2, "max_position_embeddings": 4096,
}  # fmt: skip
PROMPT = [7 * n % 200 + 10 for n in range(1500)]


def answer(server: ServerProcess, tail: int, salt: str | None = None) -> tuple[str, int]:
    """The text of an answer to the prompt with one more token, and how many tokens of it were cached."""
    body: dict[str, Any] = {"prompt": [*PROMPT, tail], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    if salt is not None:
        body["cache_salt"] = salt
    found = server.post("/v1/completions", body)
    assert found.status_code == 200, found.text
    usage = found.json()["usage"]
    return found.json()["choices"][0]["text"], usage["prompt_tokens_details"]["cached_tokens"]


def cache(*words: str) -> str:
    """What `cohort cache` prints."""
    command = [str(Path(sys.executable).with_name("cohort")), "cache", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_prompt_survives_a_restart(tmp_path: Path) -> None:
    model, folder = write_model(tmp_path, **SHAPE), tmp_path / "cache"
    flags = [str(model), "--load-format", "dummy", "--kv-cache-dir", str(folder), "--dtype", "float32"]
    with ServerProcess(flags, tmp_path, ready_within=240) as server:
        first, cached = answer(server, 5)
        assert cached == 0
    assert "files" in cache("stat", str(folder)) and "tokens" in cache("list", str(folder))
    with ServerProcess(flags, tmp_path, ready_within=240) as server:
        again, cached = answer(server, 5)
        assert again == first and cached >= 1400
        assert server.metric("cohort_kv_disk_hit_tokens_total") >= 1400
        assert answer(server, 6, "another caller")[1] == 0
    assert "files deleted" in cache("clear", str(folder))
    assert not list(folder.glob("*/*.kv"))


def test_what_has_no_memory_file_is_refused(tmp_path: Path) -> None:
    flags = [str(write_model(tmp_path)), "--load-format", "dummy", "--executor-mode", "inline"]
    code, _, error = run_until_exit([*flags, "--kv-cache-dir", str(tmp_path / "cache")], tmp_path, within=120)
    assert code != 0 and "kv_cache_dir" in error
