"""The PromQL that ships: every expression of dashboard and alert rules, and the operands of the alerts' conditions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "configs/prometheus"
DASHBOARD = ROOT / "configs/grafana/dashboards/cohort.json"

# Longer operators first; `> on (...)` and the like do not occur, `and on (...)` does.
_CONDITION = re.compile(r"\s(?:==|!=|>=|<=|>|<|(?:and|or|unless)\b(?:\s+(?:on|ignoring)\s*\([^)]*\))?)\s")


def dashboard() -> dict[str, Any]:
    """The dashboard's JSON."""
    found: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    return found


def alerts() -> list[dict[str, Any]]:
    """The alert rules."""
    groups = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard_expressions(rate_interval: str) -> Iterator[tuple[str, str]]:
    """(panel, expression), with Grafana's variables filled in as Grafana would with every instance chosen."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):  # a row has none
            text = target["expr"].replace("$__rate_interval", rate_interval)
            text = text.replace("$instance", ".*").replace("$model", ".*")
            assert "$" not in text, f"{panel['title']}: a variable that is not filled in: {text}"
            yield f"{panel['title']} {target['refId']}", text


def operands(expression: str) -> list[str]:
    """What a condition compares and joins: `a > 1 and on (x) b == 2` gives a, 1, b, 2.

    An alert that does not fire returns nothing, as does one whose metric does not exist; its operands tell them apart.
    Only operators outside of every bracket and string count.
    """
    text = " ".join(expression.split())
    parts, begin = [], 0
    for match in _CONDITION.finditer(text):
        if _depth(text[: match.start()]) == 0:
            parts.append(text[begin : match.start()].strip())
            begin = match.end()
    return [*parts, text[begin:].strip()]


def _depth(text: str) -> int:
    plain = re.sub(r'"[^"]*"', "", text)
    return sum(plain.count(c) for c in "({[") - sum(plain.count(c) for c in ")}]")
