"""Settings from a YAML file or from a preset, which is such a file of the application.

A file may come from vLLM, whose names have dashes, and may name flags of other servers: what changes nothing here is left out
with a line for the log, and one error names all others. A key without a value counts as one that is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server.settings.environment import NEVER_EMPTY, SettingsError, nearest
from server.settings.table import TABLE
from server.system.paths import configs_dir


def from_file(config: str) -> tuple[dict[str, Any], list[str]]:
    """What a file says, by name of the setting, and a line for each name that is left out. `config`: a path, or the name of a
    preset. Raises SettingsError."""
    path = _path_of(config)
    values = _read(config, path)
    settings: dict[str, Any] = {}
    foreign: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_") if isinstance(key, str) else key
        if name not in TABLE:
            foreign[str(key)] = value
        elif name in settings:
            raise SettingsError(f"{path}: {name} stands twice, once with dashes; leave one out")
        else:
            settings[name] = value
    notes = _foreign(path, foreign) if foreign else []
    return {
        name: _filled(path, name, value)
        for name, value in settings.items()
        if value is not None or name in NEVER_EMPTY
    }, notes


def _filled(path: Path, name: str, value: Any) -> Any:
    """The value. Raises SettingsError for a secret that was not filled in."""
    if value is None:
        raise SettingsError(f"{path}: {name}: it is given but empty; leave it out to serve without a key")
    return value


def _foreign(path: Path, values: Mapping[str, Any]) -> list[str]:
    """A line for each name of another server that changes nothing. Raises SettingsError, which names all other ones."""
    # Here only: most files have no such names, and clients wait for the port.
    from server.settings.foreign.command_line import ROWS, read_flags
    from server.settings.foreign.rows import Kind, by_name

    notes, unknown, rows = [], [], by_name(ROWS)
    for name, value in values.items():
        flag = f"--{name.replace('_', '-')}"
        if flag in rows and (
            value is None or (value is False and _negative(flag) not in rows and rows[flag].kind is Kind.USE)
        ):
            continue  # vLLM, too, takes it for a name that is not there
        reading = read_flags([_word(flag, value)], {})
        notes += [f"{path}: {name}{line[line.index(' ') :]}" for line in reading.warnings]
        for _, advice in reading.unknown:
            unknown.append(
                (name, advice if flag in rows else f"no such setting{nearest(name.replace('-', '_'), TABLE)}")
            )
    if len(unknown) == 1:
        [(name, advice)] = unknown
        raise SettingsError(f"{path}: {name}: {advice}")
    if unknown:
        parts = "; ".join(f"{name} ({advice.replace('; ', ', ')})" for name, advice in unknown)
        raise SettingsError(f"{path}: {len(unknown)} unknown names: {parts}")
    return notes


def _word(flag: str, value: Any) -> str:
    """The word of a command line that asks for the same."""
    if isinstance(value, bool):
        return flag if value else _negative(flag)
    return f"{flag}={value}"


def _negative(flag: str) -> str:
    return f"--no-{flag.removeprefix('--')}"


def _path_of(config: str) -> Path:
    path = Path(config)
    if path.suffix or path.exists():
        return path
    preset = configs_dir() / f"{config}.yaml"
    if not preset.is_file():
        names = ", ".join(sorted(p.stem for p in configs_dir().glob("*.yaml")))
        raise SettingsError(f"--config {config}: no such file, and no preset of that name; presets: {names}")
    return preset


def _read(config: str, path: Path) -> dict[Any, Any]:
    import yaml

    from server.settings.yaml_1_2 import KeyTwice, load_yaml

    try:
        values = load_yaml(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not readable as text"
        raise SettingsError(f"--config {config}: {reason}") from None
    except KeyTwice as error:
        raise SettingsError(f"{path}, {error}") from None
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: not valid YAML: {' '.join(str(error).split())[:200]}") from None
    except RecursionError:
        raise SettingsError(f"{path}: its lists and mappings are nested too deeply") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: a mapping of settings is expected")
    return values
