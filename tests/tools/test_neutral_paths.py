"""No path of this machine is left in what is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import neutral_paths
from tools.neutral_paths import neutral


@pytest.fixture(autouse=True)
def places(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout inside the home directory, and temporary files elsewhere."""
    monkeypatch.setattr(neutral_paths, "ROOT", Path("/srv/ada/checkout"))
    monkeypatch.setattr(Path, "home", lambda: Path("/srv/ada"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/scratch")


@pytest.mark.parametrize(
    ("said", "recorded"),
    [
        ("/srv/ada/checkout/.venv/bin/python", ".venv/bin/python"),
        ("/srv/ada/checkout", "."),
        ("/srv/ada/.cache/peers/lib/libiomp5.so", "~/.cache/peers/lib/libiomp5.so"),
        ("/srv/ada", "~"),
        ("/srv/adalbert/x", ".../x"),
        ("/scratch/tmp3f/model", "$TMPDIR/tmp3f/model"),
        ("/mnt/models/Qwen3-0.6B", ".../Qwen3-0.6B"),
        ('File "/srv/ada/checkout/tools/x.py", line 3', 'File "tools/x.py", line 3'),
        ("PATH=/usr/bin:/srv/ada/bin", "PATH=/usr/bin:~/bin"),
        ("file:///mnt/models/x", "file://.../x"),
    ],
)
def test_paths_of_the_machine_are_renamed(said: str, recorded: str) -> None:
    assert neutral(said) == recorded
    assert neutral(recorded) == recorded, "what is neutral stays"


@pytest.mark.parametrize(
    "said",
    [
        "/proc/self/smaps", "/usr/bin/g++", "/dev/shm/x", "http://127.0.0.1:8000/v1/models", "POST /v1/chat/completions",
        "/ready", "12.5 tokens/s/core", "1/2/3", "{model}/weights/x", "$HOME/x/y", "and/or", "a -/- b", "",
    ],
)  # fmt: skip
def test_what_is_no_path_of_the_machine_stays(said: str) -> None:
    assert neutral(said) == said


def test_every_string_of_a_value_is_looked_at() -> None:
    value = {"command": ["/srv/ada/checkout/a", 1.5, None, True], "env": {"/mnt/a/b": ("/scratch/c",)}}
    assert neutral(value) == {"command": ["a", 1.5, None, True], "env": {".../b": ["$TMPDIR/c"]}}
    assert value["command"][0] == "/srv/ada/checkout/a", "the value itself does not change"  # type: ignore[index]
