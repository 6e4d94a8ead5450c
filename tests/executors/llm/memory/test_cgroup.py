"""Memory and CPU limits, read from made-up /proc and /sys trees."""

from pathlib import Path

import pytest

from executors import cgroup

GIB = 1 << 30


@pytest.fixture
def box(tmp_path):
    """A machine with 64 GiB, 48 of them available, and whatever files a test adds."""

    def make(files: dict[str, str | int]) -> Path:
        meminfo = f"MemTotal: {64 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {48 * GIB // 1024} kB\n"
        for name, text in {"proc/meminfo": meminfo, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(text))
        return tmp_path

    return make


def test_without_cgroups_the_machine_counts(box):
    assert cgroup.memory_limit(box({})) == cgroup.MemoryLimit(64 * GIB, 48 * GIB)


def test_cgroup_v2_page_cache_is_not_used_memory(box):
    root = box({
        "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": 8 * GIB, "sys/fs/cgroup/memory.current": 5 * GIB,
        "sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n",
    })  # fmt: skip
    assert cgroup.memory_limit(root) == cgroup.MemoryLimit(8 * GIB, 5 * GIB)


def test_cgroup_v2_a_parent_may_be_tighter(box):
    root = box({
        "proc/self/cgroup": "0::/outer/inner\n", "sys/fs/cgroup/outer/inner/memory.max": "max",
        "sys/fs/cgroup/outer/memory.max": 4 * GIB, "sys/fs/cgroup/outer/memory.current": GIB,
    })  # fmt: skip
    assert cgroup.memory_limit(root) == cgroup.MemoryLimit(4 * GIB, 3 * GIB)


def test_cgroup_v1(box):
    root = box({
        "proc/self/cgroup": "5:cpu,cpuacct:/job\n4:memory:/job\n0::/\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": 6 * GIB,
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": 2 * GIB,
        "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
    })  # fmt: skip
    assert cgroup.memory_limit(root) == cgroup.MemoryLimit(6 * GIB, 4 * GIB)


def test_cgroup_v1_in_a_container_shows_its_group_as_the_root(box):
    root = box({
        "proc/self/cgroup": "4:memory:/docker/abc\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": 3 * GIB,
        "sys/fs/cgroup/memory/memory.usage_in_bytes": 4 * GIB,
    })  # fmt: skip
    assert cgroup.memory_limit(root) == cgroup.MemoryLimit(3 * GIB, 0)


@pytest.mark.parametrize(("files", "expected"), [
    ({}, 6),
    ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000"}, 6),
    ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000"}, 3),
    ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "10000 100000"}, 1),
    ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "400000 100000", "sys/fs/cgroup/cpu.max": "2 1"}, 2),
    ({"proc/self/cgroup": "2:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
      "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 6),
    ({"proc/self/cgroup": "2:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000",
      "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 2),
])  # fmt: skip
def test_threads(box, monkeypatch, files, expected):
    monkeypatch.setattr(cgroup.os, "sched_getaffinity", lambda pid: set(range(6)))
    assert cgroup.cpu_threads(box(files)) == expected


def test_this_machine():
    limit = cgroup.memory_limit()
    assert 0 < limit.available <= limit.total
    assert cgroup.cpu_threads() >= 1 and cgroup.resident_bytes() > 1 << 20
