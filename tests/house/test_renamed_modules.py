"""Modules that files of users start by name are still found by the names that these files may have."""

import importlib.util
import subprocess

import pytest

from cohort_server import run


@pytest.mark.parametrize("old", sorted(run._RENAMED))
def test_an_old_name_starts_the_module(old: str) -> None:
    assert importlib.util.find_spec(run._RENAMED[old]) is not None
    assert importlib.util.find_spec(old) is None, "the name is free again: the row can go"


def test_an_old_health_check_works() -> None:
    """docker-compose.yml of earlier versions."""
    done = subprocess.run(
        run.command("server.healthcheck"), capture_output=True, text=True, env={"COHORT_PORT": "1"}
    )
    assert done.returncode == 1 and done.stderr.startswith("not ready"), done.stderr
