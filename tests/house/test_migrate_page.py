"""docs/migrate.md agrees with the server: flags of others, own names, metrics."""

import re
from pathlib import Path

import pytest

from server.apis.description import OPERATIONS
from server.http.foreign_paths import FOREIGN, no_such_path
from server.settings.foreign.command_line import ROWS, read_flags
from server.settings.foreign.variables import LLAMA_CPP, OLLAMA, TGI, VLLM, advice_of_flags
from server.settings.table import TABLE
from tools import foreign_docs, migrate_docs

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "migrate.md").read_text("utf-8")
FLAGS_PAGE = (DOCS / "foreign-flags.md").read_text("utf-8")
OURS = {operation.path.removeprefix("/v1") for operation in OPERATIONS}
"""Paths that lack only /v1, with which the answer is about the base URL."""
OWN = {row.flag for row in TABLE.values()} | {
    "--no-" + row.flag.removeprefix("--") for row in TABLE.values() if row.is_switch
}


def section(title: str) -> str:
    return re.split(r"^## ", PAGE.split(f"\n## {title}\n")[1], flags=re.M)[0]


def test_the_tables_are_current() -> None:
    assert migrate_docs.with_tables(PAGE) == PAGE
    assert foreign_docs.page() == FLAGS_PAGE


def test_every_foreign_flag_and_variable_is_on_a_page() -> None:
    spelled = set(re.findall(r"`(--?[\w.-]+)`", PAGE + FLAGS_PAGE))
    assert {name for row in ROWS for name in row.names} - spelled == set()
    shown = set(re.findall(r"`([A-Z_]+)(?:=[^`]*)?`", PAGE + FLAGS_PAGE))
    used = {name for name, words in advice_of_flags().items() if not str(words).startswith("leave it out")}
    assert {*VLLM, *OLLAMA, *TGI, *LLAMA_CPP, *used} - {"LLAMA_ARG_JINJA"} - shown == set()


def test_a_changed_table_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OLLAMA, "OLLAMA_NEW", "--seed {}")  # type: ignore[arg-type]
    assert "| `OLLAMA_NEW` | `--seed` |" in migrate_docs.with_tables(PAGE) != PAGE


def test_a_page_without_markers_is_an_error() -> None:
    with pytest.raises(ValueError, match="vllm:begin"):
        migrate_docs.with_tables("# Migrate\n")


def test_names_that_are_said_to_be_vllms_are_settings() -> None:
    paragraph = section("vLLM").split("<!-- vllm:begin -->")[0]
    names = re.findall(r"`(--[a-z-]+)`", paragraph)
    assert len(names) > 20 and set(names) <= OWN


def test_settings_for_ollamas_variables_exist() -> None:
    own = re.findall(r"^\| `OLLAMA_\w+.*?` \| (.+) \|$", section("Ollama"), re.M)
    assert len(own) > 10
    assert {flag for cell in own for flag in re.findall(r"--[a-z-]+", cell)} <= OWN


def test_metrics_exist() -> None:
    documented = set(re.findall(r"^\| `(cohort_\w+)` \|", (DOCS / "metrics.md").read_text("utf-8"), re.M))
    named = set(re.findall(r"\bcohort_\w+", section("Metrics")))
    assert len(named) > 10 and named <= documented


def test_every_foreign_path_is_on_the_page_with_its_answer() -> None:
    table = section("Endpoints")
    for paths, whose, instead in FOREIGN:
        for path in () if OURS & set(paths) else paths:
            assert f"`{path}`" in table
            answer = no_such_path("POST", path, ["/v1/chat/completions", "/health"])
            assert whose in answer and (instead or "does not serve") in answer, path
    assert set(re.findall(r"`(?:GET|POST) (/[\w./]+)`", table)) <= {one.path for one in OPERATIONS}


def test_the_opening_answers_are_the_servers() -> None:
    options = dict.fromkeys(OWN, True)
    shown = re.findall(r"^\$ cohort serve (.+)\ncohort: error: (.+)$", PAGE, re.M)
    shown += re.findall(r"^\$ cohort serve (.+)\ncohort: error: (.+)$", FLAGS_PAGE, re.M)
    assert len(shown) == 3
    for argv, answer in shown:
        assert read_flags(argv.split(), options).complaint == answer
