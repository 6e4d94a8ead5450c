"""docs/clients.md agrees with what `make test-external ONLY=clients` installs and runs."""

import json

import pytest

from tests.clients import page
from tests.clients.__main__ import CHECKS, HERE, clients
from tests.clients.node_environment import AI_SDK

TEXT = page.PAGE.read_text("utf-8")


def test_the_tables_are_current() -> None:
    assert page.with_tables(TEXT) == TEXT


def test_every_client_has_a_row_and_a_file_of_checks() -> None:
    known = clients()
    assert {row.suite for row in page.ROWS} == known.keys()
    assert {one.checks for one in known.values()} == {path.name for path in HERE.glob("check_*.py")}
    assert CHECKS.keys() <= known.keys()
    for row in page.ROWS:
        assert set(row.tested.split()) <= set(page.COLUMNS)
        assert row.tested


def test_the_first_package_of_each_environment_is_the_version_shown() -> None:
    for row in page.ROWS:
        assert page.version(row)
    shown = {row.suite: page.version(row) for row in reversed(page.ROWS)}
    for name, client in clients().items():
        if name != AI_SDK.name:
            assert shown[name] == client.version, name


def test_npms_list_has_the_versions_that_are_wanted() -> None:
    locked = json.loads(
        (page.ROOT / "tests/clients/requirements/ai-sdk/package-lock.json").read_text("utf-8")
    )
    for package, version in AI_SDK.wants.items():
        assert locked["packages"][f"node_modules/{package}"]["version"] == version


def test_another_version_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "version", lambda row: "0.0.0")
    assert page.with_tables(TEXT) != TEXT


def test_a_page_without_markers_is_an_error() -> None:
    with pytest.raises(ValueError, match="clients:begin"):
        page.with_tables("# Clients\n")
