"""Key files: names, rotation, revocation on the next request, and nothing that opens a server by accident."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from server.http import keys as keys_module
from server.http.keys import Keys, parse_keys
from server.settings.load import SettingsError, load
from server.startup.key_files import read_keys
from tests.server.fakes import House

HI = {"messages": [{"role": "user", "content": "Hi"}]}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def put(path: Path, text: str, age: float = 10.0) -> None:
    """Write a file as if it had been written `age` seconds ago."""
    path.write_text(text)
    then = time.time() - age
    os.utime(path, (then, then))


async def status(house: House, key: str, path: str = "/v1/models") -> int:
    return (await house.get(path, headers=bearer(key))).status_code


async def test_a_revoked_key_fails_on_its_next_request(tmp_path: Path) -> None:
    """Also if the file keeps its size and its times are those of the version before, as within one tick of the clock."""
    file = tmp_path / "keys"
    put(file, "alice key-a\nbob key-b\n")
    house = House(options={"api_keys": Keys(("given",), str(file))})
    for key, expected in (("key-a", 200), ("key-b", 200), ("given", 200), ("alice", 401), ("key-c", 401)):
        assert await status(house, key) == expected, key
    times = file.stat()
    file.write_text("alice key-c\nbob key-b\n")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    for key, expected in (("key-a", 401), ("key-b", 200), ("key-c", 200), ("given", 200)):
        assert await status(house, key) == expected, key


async def test_two_changes_within_a_tick_of_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that is read while it is fresh is read again: the next one may have the same size and times."""
    file = tmp_path / "keys"
    put(file, "key-a\n")
    keys = Keys((), str(file))
    real, frozen = Path.stat, file.stat()

    def coarse(self: Path, **options: Any) -> os.stat_result:
        return frozen if self == file else real(self, **options)

    file.write_text("key-b\n")
    frozen = file.stat()
    monkeypatch.setattr(Path, "stat", coarse)
    assert keys.find(b"key-b") is not None
    file.write_text("key-c\n")
    assert keys.find(b"key-b") is None and keys.find(b"key-c") is not None


async def test_a_file_that_is_gone_or_broken_opens_nothing(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    put(file, "alice key-a")
    house = House(options={"api_keys": Keys((), str(file))})
    assert await status(house, "key-a") == 200
    for number, text in enumerate(("", "# none\n", "a b c\n", "\xff")):
        file.write_bytes(text.encode("latin-1"))
        assert await status(house, "key-a") == 401, number
        assert (await house.get("/v1/models")).status_code == 401, number
    file.write_text("a b c\nalice key-a\n")
    assert await status(house, "key-a") == 200, "the good lines of a file with a bad one count"
    file.unlink()
    assert await status(house, "key-a") == 401
    assert (await house.get("/v1/models")).status_code == 401
    put(file, "alice key-a")
    assert await status(house, "key-a") == 200, "back again"


async def test_a_secret_that_is_a_link(tmp_path: Path) -> None:
    """Kubernetes swaps a link to a folder; the name of the file stays."""
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        put(tmp_path / version / "keys", f"alice key-{version}")
    (tmp_path / "data").symlink_to("1")
    (tmp_path / "keys").symlink_to("data/keys")
    keys = Keys((), str(tmp_path / "keys"))
    assert keys.find(b"key-1") is not None
    (tmp_path / "new").symlink_to("2")
    (tmp_path / "new").replace(tmp_path / "data")
    assert keys.find(b"key-1") is None and keys.find(b"key-2") is not None


async def test_a_name_is_the_tenant_and_stands_in_log_and_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    put(file, "alice old-key\nalice new-key\nbob key-b\nkey-c\n")
    house = House(options={"api_keys": Keys(("given",), str(file), label="key")})
    async with house.client() as client:
        for key in ("old-key", "new-key", "key-b", "key-c", "given"):
            answer = await client.post("/v1/chat/completions", json=HI, headers=bearer(key))
            assert answer.status_code == 200
        assert (await client.post("/v1/chat/completions", json=HI, headers=bearer("no"))).status_code == 401
    contexts = [asked.context for asked in house.engine.requests]
    assert [one.key_name for one in contexts] == ["alice", "alice", "bob", "key-line-4", "key-1"]
    tenants = [one.tenant for one in contexts]
    assert tenants[0] == tenants[1] and len(set(tenants)) == 4, (
        "a client keeps its place when it changes its key"
    )
    lines = [line for line in capsys.readouterr().out.splitlines() if "chat/completions" in line]
    assert [line.partition("key=")[2].split()[0] for line in lines[:5]] == [
        "alice", "alice", "bob", "key-line-4", "key-1",
    ]  # fmt: skip
    assert "key=" not in lines[5] and not any(secret in " ".join(lines) for secret in ("old-key", "new-key"))


def test_lines() -> None:
    found, faults = parse_keys("\n# x\n  plain  \nmy-app.1\tsecret=:/+\n\ntwo words here\n../x key\n")
    assert [one.name for one in found] == ["key-line-3", "my-app.1"]
    assert [fault.partition(":")[0] for fault in faults] == ["line 6", "line 7"]
    assert not any("words" in fault or "../x" in fault for fault in faults), "it may be a secret"


def test_what_a_server_does_not_start_with(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    for text, reason in ((None, "No such file"), ("", "no key"), ("a b c", "line 1"), ("a\nb c d", "line 2")):
        if text is not None:
            file.write_text(text)
        for flag in ("api_key_file", "admin_key_file"):
            settings = load({"model": "x", flag: str(file)}, {})[0]
            with pytest.raises(SettingsError, match=f"--{flag.replace('_', '-')} .*{reason}"):
                read_keys(settings, terminal=False)


# -- the administrator -----------------------------------------------------------------------------------------------------

ADMIN_PATHS = (
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("GET", "/v1/settings"),
)


def test_an_admin_key_is_made_for_a_terminal_only() -> None:
    settings = load({"model": "x"}, {})[0]
    seen = read_keys(settings, terminal=True)
    assert seen.minted is not None and seen.admin.find(seen.minted.encode()) is not None
    assert read_keys(settings, terminal=True).minted != seen.minted
    unseen = read_keys(settings, terminal=False)
    assert unseen.minted is None and not unseen.admin
    given = read_keys(load({"model": "x", "admin_key": "mine"}, {})[0], terminal=True)
    assert given.minted is None and given.admin.find(b"mine") is not None


@pytest.mark.parametrize("api_keys", [(), ("key",)])
async def test_without_an_admin_key_its_paths_do_not_exist(api_keys: tuple[str, ...]) -> None:
    house = House(options={"admin_key": None, "api_keys": api_keys})
    async with house.client(headers=bearer("key") if api_keys else {}) as client:
        for method, path in ADMIN_PATHS:
            for spelling in (path, f"{path}/", f"{path}/x", f"{path}//"):
                answer = await client.request(method, spelling, json={})
                unknown = await client.request(method, "/v1/nothing", json={})
                assert answer.status_code == unknown.status_code == 404, spelling
                assert answer.json()["error"]["code"] == unknown.json()["error"]["code"]
            if api_keys:
                assert (await client.request(method, path, headers=bearer("x"))).status_code == 401


async def test_an_admin_key_file(tmp_path: Path) -> None:
    file = tmp_path / "admins"
    put(file, "carol key-c\n")
    house = House(options={"api_keys": ("key",), "admin_key": Keys((), str(file), label="admin")})
    assert [await status(house, key, "/v1/settings") for key in ("key-c", "key", "x")] == [200, 401, 401]
    assert [await status(house, key, "/v1/settings/") for key in ("key-c", "key")] == [200, 401]
    assert await status(house, "key-c") == 200, "it opens what a client's key opens"
    put(file, "carol key-d\n", age=5)
    assert [await status(house, key, "/v1/settings") for key in ("key-c", "key-d")] == [401, 200]
    assert await status(house, "key-c") == 401


def test_a_file_that_does_not_change_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    put(file, "key-a\n")
    later = time.time() + 1
    monkeypatch.setattr(keys_module.time, "time", lambda: later)
    keys = Keys((), str(file))
    monkeypatch.setattr(keys_module, "_read", lambda path: pytest.fail("read again"))
    assert all(keys.find(b"key-a") is not None for _ in range(3))
