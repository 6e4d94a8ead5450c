"""The settings table: whatever tells of a setting tells what its row says, and no default stands anywhere else."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort_server.command_line import application
from engine.config import EngineConfig
from executors.contract import BATCH_LIMITS, ExecutorConfig, OptimizationConfig
from server.commands import healthcheck
from server.settings.kinds import Setting
from server.settings.load import SettingsError, load
from server.settings.table import CONFIG, DEFAULTS, TABLE, Settings
from server.startup.core_configs import engine_config, executor_config
from server.system.paths import configs_dir
from tests.tiers import examples, sweep
from tools import settings_docs

ROOT = Path(__file__).parents[3]
ROWS = pytest.mark.parametrize("row", TABLE.values(), ids=list(TABLE))


def options(verb: str) -> dict[str, Any]:
    """Options of a verb by their names in Python."""
    command: Any = typer.main.get_command(application())
    return {one.name: one for one in command.commands[verb].params if one.param_type_name == "option"}


SERVE = options("serve")


# -- one row, everywhere ---------------------------------------------------------------------------------------------------


def test_every_field_is_a_row_and_every_row_a_flag_in_its_order() -> None:
    assert [*TABLE, "explicit"] == [field.name for field in dataclasses.fields(Settings)]
    assert list(SERVE) == ["check", *TABLE, "config"]


@ROWS
def test_help_says_what_the_row_says(row: Setting) -> None:
    option = SERVE[row.name]
    assert option.help == row.help_line
    short = {"tensor_parallel_size": ["-tp"], "pipeline_parallel_size": ["-pp"]}.get(row.name, [])
    assert option.opts == [row.flag, *short]
    assert option.secondary_opts == ([f"--no-{row.flag[2:]}"] if row.is_switch else [])
    assert row.help.endswith(".") and row.help[0].isupper() and "[" not in row.help.replace("[flash]", "")
    assert row.default_text or row.name in ("override_generation_config", "executor_option")


@pytest.mark.parametrize("verb", ["info", "verify", "chat", "list"])
def test_other_verbs_say_the_same(verb: str) -> None:
    own = {"info": {"memory"}, "verify": {"dtype", "device"}, "chat": {"model", "api_key", "seed"}}.get(
        verb, set()
    )
    shared = {name: option for name, option in options(verb).items() if name in TABLE and name not in own}
    assert len(shared) >= 1
    for name, option in shared.items():
        assert (option.help, option.opts[0]) == (TABLE[name].help_line, TABLE[name].flag)


@ROWS
def test_the_page_has_a_line_for_it(row: Setting) -> None:
    [line] = [line for line in settings_docs.page().splitlines() if f"`{row.variable}`" in line]
    cells = [cell.strip().replace("\\", "") for cell in line.strip("|").split(" | ")]
    assert f"`{row.flag}`" in cells[0]
    assert cells[1:] == [row.kind, row.default_text or "none", row.help]


def test_the_page_is_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_docs.main(["check"]) == 0
    page = settings_docs.PAGE.read_text("utf-8")
    monkeypatch.setattr(settings_docs, "PAGE", tmp_path / "settings.md")
    assert settings_docs.main(["check"]) == 1, "it is not there"
    (tmp_path / "settings.md").write_text(page.replace("8000", "8001"), "utf-8")
    assert settings_docs.main(["check"]) == 1
    assert settings_docs.main(["write"]) == 0
    assert (tmp_path / "settings.md").read_text("utf-8") == page


def test_the_help_of_config_names_the_presets() -> None:
    presets = sorted(path.stem for path in configs_dir().glob("*.yaml"))
    assert sorted(CONFIG.help.partition("preset: ")[2].rstrip(".").split(", ")) == presets


def test_the_table_is_read_without_pydantic_and_yaml() -> None:
    code = "import sys, server.settings.table; print({'pydantic', 'yaml', 'typer'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.stdout == "set()\n", done


@pytest.mark.parametrize(
    "argv", [["--help"], ["serve", "--help"], ["info", "--help"], ["ray", "serve", "--help"]]
)
def test_help_is_shown_without_pydantic(argv: list[str]) -> None:
    code = (
        "import sys, atexit; from cohort_server import command_line; sys.argv[0] = 'cohort'\n"
        "atexit.register(lambda: print({'pydantic', 'yaml'} & set(sys.modules), file=sys.stderr))\n"
        "command_line.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *argv], cwd=ROOT, capture_output=True, text=True, timeout=50
    )
    assert "Usage:" in done.stdout and done.stderr == "set()\n", done


# -- defaults --------------------------------------------------------------------------------------------------------------


@ROWS
def test_a_default_is_a_value_that_the_row_accepts(row: Setting) -> None:
    said = list(row.default) if isinstance(row.default, tuple) else row.default
    if row.name != "api_key":  # an empty list is a secret that was not filled in
        assert row.value_of(said) == row.default
    assert getattr(DEFAULTS, row.name) == row.default


def test_configurations_that_others_can_use_have_the_same_defaults() -> None:
    """Engine and executors are packages of their own, and import nothing of the server. Only a server takes drafts of its model's
    head unasked: it chooses for engine and executor alike."""
    drafts = {"num_speculative_tokens": 2, "speculative_method": "mtp", "speculative_if_usable": True}
    assert engine_config(DEFAULTS) == dataclasses.replace(EngineConfig(), **drafts)
    ours, head = executor_config(DEFAULTS, Path("model")), OptimizationConfig(mtp_if_usable=True)
    assert ours == ExecutorConfig(DEFAULTS.executor, "model", default_limits=BATCH_LIMITS, optimization=head)
    assert DEFAULTS.port == healthcheck._DEFAULT_PORT


def test_no_default_of_the_docs_is_another_one() -> None:
    """In tables with a column for defaults; the cell may be the beginning of what `--help` says."""
    seen = set()
    for page in (ROOT / "README.md", ROOT / "docs" / "operate.md", ROOT / "docs" / "your-model.md"):
        told = False
        for line in page.read_text("utf-8").splitlines():
            cells = [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
            told = (told or cells[:2] == ["flag", "default"]) if line.startswith("|") else False
            names = re.findall(r"--[a-z][a-z-]+", cells[0]) if told else []
            flags = [name for name in names if not name.startswith("--no-")]
            values = cells[1].split(", ") if len(flags) > 1 else cells[1:2]
            for flag, value in zip(flags, values, strict=True) if flags else ():
                row = TABLE[flag[2:].replace("-", "_")]
                assert row.default_text.startswith(value), f"{page.name}: {flag} {value}"
                seen.add(row.name)
    assert len(seen) >= 18


def test_seconds_in_the_prose_of_the_docs_are_the_defaults() -> None:
    page = (ROOT / "docs" / "operate.md").read_text("utf-8")
    found = re.findall(r"`--([a-z-]+)` \((\d+) s\)", page)
    assert len(found) >= 2
    for flag, seconds in found:
        assert float(seconds) == TABLE[flag.replace("-", "_")].default, flag


# -- a value is the same from everywhere -----------------------------------------------------------------------------------

NAME = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_.-]{0,12}", fullmatch=True)
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1)
SCALAR = (
    st.integers(-(10**9), 10**9) | st.booleans() | NAME | st.floats(allow_nan=False, allow_infinity=False)
)

NEEDED: dict[str, dict[str, Any]] = {
    "cache_salt_per_key": {"api_key": ["k"]},
    "allowed_methods": {"allowed_origins": ["https://a"]},
    "allowed_headers": {"allowed_origins": ["https://a"]},
    "allow_credentials": {"allowed_origins": ["https://a"]},
}
"""Settings without which others have no effect, and are refused."""


def values_of(row: Setting) -> st.SearchStrategy[Any]:
    """Values that a row accepts, by its kind."""
    if row.name == "allowed_origins":
        return st.lists(NAME.map(lambda name: f"https://{name}.example"), min_size=1, max_size=3)
    if row.name == "allowed_hosts":
        return st.lists(
            st.from_regex(r"[a-z]{1,8}(\.[a-z]{1,8}){0,2}", fullmatch=True), min_size=1, max_size=3
        )
    if row.metavar == "PATTERN=NAME":
        return st.lists(st.builds("{}*={}".format, NAME, NAME), min_size=1, max_size=3)
    if row.several and row.metavar != "NAME=VALUE":
        return st.lists(NAME, min_size=1, max_size=3)
    if row.is_switch:
        return st.booleans()
    if row.metavar == "NAME=VALUE":
        # What YAML reads as something else than a string is no value for a string.
        plain = SCALAR.filter(lambda one: not isinstance(one, str) or yaml.safe_load(one) == one)
        return st.dictionaries(NAME, plain, min_size=1, max_size=3)
    if row.metavar == "JSON":
        return st.dictionaries(NAME, SCALAR, max_size=3)
    if row.metavar == "BYTES":
        return st.integers(1, 2**50)
    low, high = _bounds(row)
    if row.metavar == "<int>":
        return st.integers(int(low), int(high))
    if row.metavar == "<float>":
        return st.floats(low, high, exclude_min="above" in row.kind)
    if choices := re.findall(r"`([^`]+)`", row.kind):
        return st.sampled_from(choices)
    return NAME if row.secret else WORDS


def _bounds(row: Setting) -> tuple[float, float]:
    low = re.search(r"(?:at least |above |, )(\d+)", row.kind)
    high = re.search(r"(?:at most | to )(\d+)", row.kind)
    return (float(low[1]) if low else 0, float(int(high[1]) >> 12 << 12 or high[1]) if high else 10**9)


def spellings(row: Setting, value: Any) -> tuple[Any, str, Any]:
    """How a flag, a variable and a YAML file say a value."""
    if row.metavar == "NAME=VALUE":
        pairs = [
            f"{name}={json.dumps(one) if not isinstance(one, str) else one}" for name, one in value.items()
        ]
        return pairs, ",".join(pairs), value
    if row.metavar == "JSON":
        return json.dumps(value), json.dumps(value), value
    if row.several:
        return value, ",".join(value), value
    if row.is_switch:
        return value, str(value).lower(), value
    return str(value), str(value), value


def outcome(row: Setting, flags: dict[str, Any], environ: dict[str, str]) -> Any:
    """The value of the setting, or the complaint."""
    try:
        return getattr(load(flags, environ)[0], row.name)
    except SettingsError as error:
        return str(error)


@sweep(every=3)
@ROWS
@settings(max_examples=examples(10))
@given(data=st.data())
def test_flag_variable_and_file_give_the_same_value(row: Setting, data: st.DataObject) -> None:
    value = data.draw(values_of(row), "value")
    flag, variable, in_file = spellings(row, value)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        yaml.safe_dump({row.name: in_file}, file, allow_unicode=True)
        file.flush()
        more = NEEDED.get(row.name, {})
        found = [
            outcome(row, {**more, row.name: flag}, {}),
            outcome(row, more, {row.variable: variable}),
            outcome(row, {**more, "config": file.name}, {}),
        ]
    expected = tuple(value) if row.several and isinstance(value, list) else value
    assert found == [expected] * 3


def test_a_default_limit_of_a_step_follows_the_one_that_is_set() -> None:
    def limits(**flags: int) -> tuple[int, int, tuple[str, ...]]:
        made = executor_config(load(flags, {})[0], Path("model"))
        return made.max_num_seqs, made.max_num_batched_tokens, made.default_limits

    assert limits() == (64, 2048, BATCH_LIMITS)
    assert limits(max_num_seqs=4096) == (4096, 4096, ("max_num_batched_tokens",))
    assert limits(max_num_batched_tokens=8) == (8, 8, ("max_num_seqs",))
    assert limits(max_num_seqs=8, max_num_batched_tokens=9) == (8, 9, ())
    with pytest.raises(SettingsError, match="--max-num-batched-tokens 8 is less than --max-num-seqs 9"):
        load({"max_num_seqs": 9, "max_num_batched_tokens": 8}, {})


def test_defaults_on_a_gpu_are_told_where_defaults_are() -> None:
    assert TABLE["max_num_seqs"].default_text.endswith("; on a GPU 256")
    assert TABLE["max_num_batched_tokens"].default_text.endswith("; on a GPU 8192")


@given(data=st.data())
def test_a_wrong_value_is_refused_in_the_same_words(data: st.DataObject) -> None:
    numbers = [row for row in TABLE.values() if row.metavar in ("<int>", "<float>", "BYTES") or row.is_switch]
    row = data.draw(st.sampled_from(numbers), "row")
    wrong = data.draw(st.from_regex(r"[a-z]{3}x[a-z]{0,5}|-[1-9][0-9]{0,5}x", fullmatch=True), "value")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        yaml.safe_dump({row.name: wrong}, file)
        file.flush()
        found = [
            (row.flag, outcome(row, {row.name: wrong}, {})),
            (row.variable, outcome(row, {}, {row.variable: wrong})),
            (f"{file.name}: {row.name}", outcome(row, {"config": file.name}, {})),
        ]
    assert all(complaint.startswith(f"{source}: it should be ") for source, complaint in found), found
    assert len({complaint.removeprefix(source) for source, complaint in found}) == 1
