"""A SIGKILL is the out-of-memory killer's if the counter of the process's cgroup went up while the child was known to live."""

from __future__ import annotations

from pathlib import Path

import pytest

from executors.process.oom_kills import OomKills

MEMINFO = "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n"


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2 = {
    "proc/self/cgroup": "0::/box/app\n",
    "proc/vmstat": "pgfault 1\noom_kill 70\n",
    "sys/fs/cgroup/box/memory.events": "oom 0\noom_kill 9\n",
    "sys/fs/cgroup/box/memory.max": str(2 << 30),
    "sys/fs/cgroup/box/memory.current": "0",
    "sys/fs/cgroup/box/app/memory.events": "low 0\noom 3\noom_kill 5\noom_group_kill 0\n",
    "sys/fs/cgroup/box/app/memory.max": "max",
}
V1 = {
    "proc/self/cgroup": "4:memory:/box\n",
    "sys/fs/cgroup/memory/box/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    "sys/fs/cgroup/memory/box/memory.limit_in_bytes": str(1 << 30),
    "sys/fs/cgroup/memory/box/memory.usage_in_bytes": "0",
}
CASES = {
    "v2": (V2, "sys/fs/cgroup/box/app/memory.events", "oom_kill 6\n", "the container's limit is 2,048 MiB"),
    "v2, local": (
        V2 | {"sys/fs/cgroup/box/app/memory.events.local": "oom_kill 1\n"},
        "sys/fs/cgroup/box/app/memory.events.local",
        "oom_kill 2\n",
        "the container's limit is 2,048 MiB",
    ),
    "v2, a namespace": (
        {"proc/self/cgroup": "0::/not/shown\n", "sys/fs/cgroup/memory.events": "oom_kill 0\n"},
        "sys/fs/cgroup/memory.events",
        "oom_kill 1\n",
        "the machine has 16,384 MiB and no cgroup a limit",
    ),
    "v1": (
        V1,
        "sys/fs/cgroup/memory/box/memory.oom_control",
        "oom_kill 3\n",
        "the container's limit is 1,024 MiB",
    ),
    "no cgroup": (
        {"proc/vmstat": "oom_kill 7\n"},
        "proc/vmstat",
        "oom_kill 8\n",
        "the machine has 16,384 MiB",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_counter_that_went_up_names_the_killer(case: str, tmp_path: Path) -> None:
    files, counter, after, where = CASES[case]
    kills = OomKills(machine(tmp_path, files))
    kills.alive()
    assert kills.verdict() is None
    (tmp_path / counter).write_text(after)
    verdict = kills.verdict()
    assert verdict is not None and where in verdict
    assert (
        verdict.startswith("killed by the kernel's out-of-memory killer")
        and "--kv-cache-memory-bytes" in verdict
    )


def test_only_the_processs_own_group_counts(tmp_path: Path) -> None:
    kills = OomKills(machine(tmp_path, V2))
    (tmp_path / "sys/fs/cgroup/box/memory.events").write_text("oom_kill 10\n")
    (tmp_path / "proc/vmstat").write_text("oom_kill 71\n")
    assert kills.verdict() is None


def test_a_kill_before_a_sign_of_life_was_another_processs(tmp_path: Path) -> None:
    """A compiler's, for example. The sign that follows a kill at once may have been sent before it, the second one was not."""
    kills = OomKills(machine(tmp_path, V2))
    (tmp_path / "sys/fs/cgroup/box/app/memory.events").write_text("oom_kill 6\n")
    kills.alive()
    assert kills.verdict() is not None
    kills.alive()
    assert kills.verdict() is None


def test_without_counters_nothing_is_said(tmp_path: Path) -> None:
    kills = OomKills(machine(tmp_path, {}))
    kills.alive()
    assert kills.verdict() is None
