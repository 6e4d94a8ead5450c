"""No telemetry: a server with a model that is there sends nothing to another machine, from its start to its end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.silent_network import NAMESPACES, skip_where_impossible
from tests.ops.expressions import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]


def test_a_server_without_a_hub_source_sends_nothing(tmp_path: Path) -> None:
    skip_where_impossible()
    run = subprocess.run(
        [*NAMESPACES, sys.executable, "-m", "tests.e2e.silent_network", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=170,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["statuses"] == [200, 404], "it did its work"
    assert found["ipv4"] == ["203.0.113.1"] and found["ipv6"] == ["2001:db8:1::1"], "would have been seen"
    assert found["lookup"] == ["203.0.113.53"], "would have been seen"
    assert found["server"] == []
