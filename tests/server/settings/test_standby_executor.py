"""`--standby-executor` reaches the executor and the memory that it leaves free, and is refused where nothing could stand by."""

from __future__ import annotations

from pathlib import Path

import pytest

from executors.process.standby import STANDBY_KINDS
from server.settings.environment import SettingsError
from server.settings.load import load
from server.settings.table import STANDBY_EXECUTORS
from server.startup.core_configs import executor_config


def test_both_tables_have_the_same_choices() -> None:
    assert STANDBY_EXECUTORS == STANDBY_KINDS


@pytest.mark.parametrize(("kind", "context"), [("auto", False), ("imports", False), ("device", True)])
def test_a_context_is_kept_free_where_one_stands_by(kind: str, context: bool, tmp_path: Path) -> None:
    settings, _ = load({"model": str(tmp_path)}, {"COHORT_STANDBY_EXECUTOR": kind})
    assert settings.standby_executor == kind
    assert executor_config(settings, tmp_path).memory.standby_context is context


@pytest.mark.parametrize(
    ("kind", "refused"), [("auto", False), ("off", False), ("imports", True), ("device", True)]
)
def test_a_thread_has_no_next_process(kind: str, refused: bool, tmp_path: Path) -> None:
    flags = {"model": str(tmp_path), "standby_executor": kind, "executor_mode": "inline"}
    settings, _ = load(flags, {})
    if not refused:
        executor_config(settings, tmp_path)
        return
    with pytest.raises(
        SettingsError, match=f"--standby-executor {kind} does not go with --executor-mode inline"
    ):
        executor_config(settings, tmp_path)
