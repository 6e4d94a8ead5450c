"""What Docker Compose makes of `docker-compose.yml`, by the rules of the Compose specification: as much as the file uses.

interpolation        ${NAME:-default} anywhere, from the shell's variables and, behind them, those of `.env`
env_file             every variable of the file, whatever its name; a file that need not be there may be missing
environment: - NAME  passed on if the shell or `.env` has it, left out otherwise; wins over env_file
environment: - N=V   the value given
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
"""In double quotes, behind a backslash; any other character stands for itself."""
_LINE = re.compile(r"(?:export\s+)?(\w+)\s*=\s*(.*)")


def read_dotenv(text: str) -> dict[str, str]:
    """Variables of a file in the form of `.env`: comments, quotes and `export` as Compose reads them, without interpolation.
    Raises ValueError for a line of another form."""
    found = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"not NAME=VALUE: {line}")
        name, value = match.groups()
        if quoted := re.match(r"'([^']*)'", value):
            found[name] = quoted[1]
        elif quoted := re.match(r'"((?:[^"\\]|\\.)*)"', value):
            found[name] = re.sub(r"\\(.)", lambda escaped: _ESCAPES.get(escaped[1], escaped[1]), quoted[1])
        else:
            found[name] = re.split(r"\s+#", value)[0].strip()
    return found


class ComposeFile:
    """A compose file where `shell` holds the variables of the process that runs Compose. `.env` is read beside the file."""

    def __init__(self, path: Path, shell: Mapping[str, str]) -> None:
        self.directory = path.parent
        dotenv = path.parent / ".env"
        from_file = read_dotenv(dotenv.read_text("utf-8")) if dotenv.is_file() else {}
        self.known = from_file | dict(shell)
        text = path.read_text("utf-8")
        self.services: dict[str, Any] = self._interpolated(yaml.safe_load(text))["services"]

    def _interpolated(self, node: Any) -> Any:
        if isinstance(node, dict):
            return {key: self._interpolated(value) for key, value in node.items()}
        if isinstance(node, list):
            return [self._interpolated(value) for value in node]
        if isinstance(node, str):
            return _VARIABLE.sub(lambda match: self.known.get(match[1]) or match[2] or "", node)
        return node

    def environment(self, service: str) -> dict[str, str]:
        """The variables that the service's container gets beside those of its image. Raises FileNotFoundError."""
        definition = self.services[service]
        found: dict[str, str] = {}
        for entry in definition.get("env_file", []):
            path = self.directory / entry["path"]
            if path.is_file() or entry["required"]:
                found |= read_dotenv(path.read_text("utf-8"))
        for entry in definition.get("environment", []):
            name, given, value = entry.partition("=")
            if given:
                found[name] = value
            elif name in self.known:
                found[name] = self.known[name]
        return found
