"""Downloads against a hub on this machine, in the process that really does them. What is served of it: tests/e2e/test_hub.py."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cohort_server import run
from server.hub import HubError, HubModel, HubName, HubNotYet, fetch, hub_name
from server.hub.files import small_files, weight_files
from server.system.exit_codes import MISTAKE, NOT_YET, code_of
from tests.server.hub.fake_hub import COMMIT, FakeHub, sha256

pytestmark = pytest.mark.long

NAME = "acme/random-1m"
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = "model.safetensors.index.json"
SMALL = ["chat_template.jinja", "config.json", "model.safetensors.index.json", "tokenizer.json"]
OTHERS = [
    "README.md", "pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.safetensors", "model.gguf",
    "model.pth", "onnx/model.onnx", "onnx/config.json", "original/params.json", "original/consolidated.00.pth",
]  # fmt: skip
MIB = 1 << 20


@pytest.fixture
def hub(tmp_path: Path) -> FakeHub:
    """A repository in two shards of 3 MiB, with much beside them that nobody needs."""
    folder = tmp_path / "repository"
    for name in (*SMALL, *OTHERS, *SHARDS):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f'{{"name": "{name}"}}')
    index = {"weight_map": {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[0]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for number, shard in enumerate(SHARDS):
        (folder / shard).write_bytes(bytes([number + 1]) * 3 * MIB)
    return FakeHub(folder)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and no token, whatever the machine has."""
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    return tmp_path / "cache"


@pytest.fixture
def url(hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with hub.serving() as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        yield address


async def get(cache: Path, name: str = NAME, revision: str | None = None, weights: bool = True) -> Path:
    return await fetch(HubModel(name, revision, str(cache), weights), lambda *_: None)


async def error(
    cache: Path, name: str = NAME, revision: str | None = None, *, passes: bool | None = False
) -> str:
    """The sentence of a download that fails. `passes`: whether a later one may succeed; None: not looked at."""
    with pytest.raises(HubError) as caught:
        await get(cache, name, revision)
    assert len(str(caught.value).splitlines()) == 1
    if passes is not None:
        assert isinstance(caught.value, HubNotYet) is passes, caught.value
        assert code_of(caught.value) == (NOT_YET if passes else MISTAKE)
    return str(caught.value)


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def partial(cache: Path) -> list[int]:
    """Sizes of the files that are not whole."""
    return sorted(path.stat().st_size for path in cache.rglob("*.incomplete"))


def forget_listings(cache: Path) -> None:
    for listing in cache.rglob("trees/*.json"):
        listing.unlink()


def assert_whole(folder: Path, hub: FakeHub) -> None:
    for shard in SHARDS:
        assert sha256(folder / shard) == sha256(hub.folder / shard), shard


async def test_only_what_is_needed_is_fetched_and_only_once(hub: FakeHub, url: str, cache: Path) -> None:
    reports: list[tuple[int, int]] = []
    folder = await fetch(HubModel(NAME, None, str(cache)), lambda *report: reports.append(report))
    found = names_in(folder)
    assert found == {*SMALL, *SHARDS}
    assert hub.fetched() == sorted(found)
    assert_whole(folder, hub)
    total = sum((hub.folder / name).stat().st_size for name in found)
    assert reports[-1] == (total, total)
    assert reports == sorted(reports)
    assert not partial(cache)

    hub.requests.clear()
    assert await get(cache) == folder
    assert hub.fetched() == []
    assert len(hub.requests) == 1, "one question: which commit main is"


async def test_a_cut_is_mended_while_it_runs(hub: FakeHub, url: str, cache: Path) -> None:
    hub.cuts = [MIB + 5000]
    assert_whole(await get(cache), hub)
    assert hub.ranges() == [f"bytes={MIB}-"]


async def test_a_killed_download_goes_on_where_it_stopped(hub: FakeHub, url: str, cache: Path) -> None:
    """Cancelled, as Ctrl-C does, in the middle of both shards."""
    hub.hold_after = 2 * MIB + 5000
    arrived = asyncio.Event()

    def report(done: int, total: int) -> None:
        if done > 4 * MIB:
            arrived.set()

    task = asyncio.create_task(fetch(HubModel(NAME, None, str(cache)), report))
    await asyncio.wait_for(arrived.wait(), 30)
    for _ in range(1000):
        if partial(cache) == [2 * MIB, 2 * MIB]:  # a piece is reported before it is written
            break
        await asyncio.sleep(0.01)
    begun = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - begun < 2
    assert partial(cache) == [2 * MIB, 2 * MIB]

    hub.hold_after = None
    hub.requests.clear()
    assert_whole(await get(cache), hub)
    assert hub.ranges() == [f"bytes={2 * MIB}-"] * 2
    assert not partial(cache)


async def test_a_damaged_file_is_not_kept(hub: FakeHub, url: str, cache: Path) -> None:
    hub.lies = {SHARDS[1]: bytes(3 * MIB)}
    message = await error(cache, passes=True)
    assert message == f"{NAME}: {SHARDS[1]} arrived damaged: start again, which fetches it anew"
    hub.lies = {}
    assert_whole(await get(cache), hub)


async def test_two_at_once(hub: FakeHub, url: str, cache: Path) -> None:
    """They share the work: no byte is written twice."""
    folders = await asyncio.gather(get(cache), get(cache))
    assert folders[0] == folders[1]
    assert_whole(folders[0], hub)
    assert not partial(cache)


async def test_revisions(hub: FakeHub, url: str, cache: Path) -> None:
    for revision in ("v1", COMMIT):
        assert (await get(cache, revision=revision)).name == COMMIT
    message = await error(cache, revision="v9")
    assert message == f"{NAME} has no revision v9: check --revision against {url}/{NAME}"


async def test_gated(hub: FakeHub, url: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token = "right"
    message = await error(cache)
    assert message == (
        f"{NAME} is gated: accept its conditions at {url}/{NAME}, then set HF_TOKEN to a token of that account"
    )
    monkeypatch.setenv("HF_TOKEN", "wrong")
    message = await error(cache)
    assert message.endswith("with the account of the token in HF_TOKEN, which has no access yet")
    assert "wrong" not in message
    monkeypatch.setenv("HF_TOKEN", "right")
    assert_whole(await get(cache), hub)


async def test_no_such_repository(url: str, cache: Path) -> None:
    message = await error(cache, "acme/nothing")
    assert message == (
        f"no directory acme/nothing here, and no repository acme/nothing at {url}: check the name, "
        "or set HF_TOKEN if it is private"
    )
    assert "neither a directory nor a name" in await error(cache, "acme/two--dashes")


async def test_the_hub_is_down(hub: FakeHub, url: str, cache: Path) -> None:
    for status in (418, 503):
        hub.status = status
        assert (
            await error(cache, passes=True)
            == f"{NAME}: {url} answered with status {status}: try again later, or give a directory"
        )
    hub.status = 403
    assert "denies access (403): set HF_TOKEN" in await error(cache)


async def test_no_network(hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused without a copy; a copy that is complete is served."""
    with hub.serving() as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        folder = await get(cache)
    assert await get(cache) == folder
    message = await error(cache, "acme/other", passes=True)
    assert message.startswith(f"acme/other is not, or not completely, in the cache {cache}, and {address}")
    assert message.endswith("check the network, or give a directory")


async def test_offline(hub: FakeHub, url: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await get(cache, weights=False)
    hub.requests.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    advice = (
        f"in the cache {cache}, and HF_HUB_OFFLINE forbids to fetch it: start once without HF_HUB_OFFLINE, or give a "
        "directory"
    )
    assert await error(cache) == f"{NAME} is not, or not completely, {advice}", "its weights are missing"
    assert await error(cache, "acme/other") == f"acme/other is not, or not completely, {advice}"
    assert (await error(cache, revision="v1")).startswith(f"revision v1 of {NAME} is not")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    folder = await get(cache)
    hub.requests.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert await get(cache) == folder
    assert hub.requests == []


async def test_a_cache_that_another_version_filled(
    hub: FakeHub, url: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older ones kept no listing."""
    folder = await get(cache)
    forget_listings(cache)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert await get(cache) == folder
    (folder / SHARDS[0]).unlink()
    assert "not completely" in await error(cache)


async def test_no_room(hub: FakeHub, url: str, cache: Path) -> None:
    hub.sizes = {SHARDS[0]: 10**15}
    message = await error(cache, passes=True)
    assert message.startswith(f"{NAME} needs 1,000,000.0 GB more in {cache}, where ")
    assert message.endswith("or name another place with --download-dir")
    assert not [path for way, path, _ in hub.requests if way == "GET" and path.startswith("/cdn/")]


async def test_the_disk_is_full(hub: FakeHub, url: str, cache: Path) -> None:
    """Every write to the second shard fails as it does on a full disk."""
    folder = await get(cache, weights=False)
    blobs = folder.parent.parent / "blobs"
    partial_file = blobs / f"{sha256(hub.folder / SHARDS[1])}.incomplete"
    partial_file.symlink_to("/dev/full")
    message = await error(cache, passes=True)
    assert message == (
        f"{NAME}: the disk of {cache} is full: make room and start again, which goes on where it stopped, or name "
        "another place with --download-dir"
    )
    partial_file.unlink()
    assert_whole(await get(cache), hub)


async def test_a_cache_that_cannot_be_written(url: str, tmp_path: Path) -> None:
    """/proc: not even root can."""
    message = await error(Path("/proc/cache"))
    assert message.startswith(f"{NAME}: /proc/cache cannot be written to (")
    assert message.endswith("name another place with --download-dir")


@pytest.mark.long(every=3)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"config.json": None, "model.gguf": None}, "has no config.json"),
        ({"model.safetensors.index.json": b"["}, "is no JSON"),
        ({"model.safetensors.index.json": b"{}"}, "weight_map is missing"),
        ({SHARDS[1]: None}, f"{SHARDS[1]} is missing"),
        (
            dict.fromkeys((INDEX, "model.gguf", "consolidated.safetensors", *SHARDS)),
            "has only pickled weights (model.pth)",
        ),
        ({INDEX: None, SHARDS[0]: None}, f"{SHARDS[0]} is missing: there are 1 of 2 shards and no index"),
        (
            {"foo.safetensors.index.json": b"{}", "bar.safetensors.index.json": b"{}", INDEX: None},
            "are two indexes",
        ),
    ],
)
async def test_repositories_that_cannot_be_served(
    hub: FakeHub, url: str, cache: Path, change: dict[str, bytes | None], words: str
) -> None:
    """Said before the first large file is fetched."""
    for name, content in change.items():
        (hub.folder / name).unlink() if content is None else (hub.folder / name).write_bytes(content)
    message = await error(cache)
    assert NAME in message
    assert words in message
    assert not [name for name in hub.fetched() if name.endswith(".safetensors")]


@pytest.mark.long(every=2)
@pytest.mark.parametrize(
    ("names", "index"),
    [
        ((SHARDS[0], SHARDS[1]), None),
        (("foo.safetensors",), None),
        (("one.safetensors", "two.safetensors"), None),
        (("a.safetensors", "b.safetensors"), "pytorch_model.safetensors.index.json"),
    ],
)  # fmt: skip
async def test_weights_of_other_names(
    hub: FakeHub, url: str, cache: Path, names: tuple[str, ...], index: str | None
) -> None:
    for name in (INDEX, *SHARDS):
        (hub.folder / name).unlink()
    for name in (*names, "adapter_model.safetensors", "optimizer.safetensors"):
        (hub.folder / name).write_bytes(name.encode() * 1000)
    if index is not None:
        (hub.folder / index).write_text(json.dumps({"weight_map": {name: name for name in names}}))
    small = {*SMALL, *([] if index is None else [index])} - {INDEX}
    assert names_in(await get(cache)) == {*small, *names}


async def test_a_check_before_the_weights(hub: FakeHub, url: str, cache: Path) -> None:
    seen: list[set[str]] = []

    async def refuse(folder: Path) -> None:
        seen.append(names_in(folder))
        raise ValueError("no such architecture")

    with pytest.raises(ValueError, match="no such architecture"):
        await fetch(HubModel(NAME, None, str(cache)), lambda *_: None, refuse)
    assert seen == [set(SMALL)]
    assert not any(path.startswith("/cdn/") for _, path, _ in hub.requests)


def test_which_files() -> None:
    files = [
        "1_Pooling/config.json",
        "tokenizer.model",
        "additional_chat_templates/rag.jinja",
        "additional_chat_templates/x.py",
        "a/config.json",
        "2_Dense/config.json",
    ]
    assert small_files([*SMALL, *OTHERS, *files]) == sorted([*SMALL, *files[1:3]])
    steps = ["modules.json", "onnx/config.json", files[0], *files[4:]]
    assert small_files([*SMALL, *OTHERS, *files, "modules.json"]) == sorted([*SMALL, *files[1:3], *steps])
    assert weight_files("a/b", ["foo.safetensors", "optimizer.safetensors", "vae/x.safetensors"], None) == [
        "foo.safetensors"
    ]
    layered = [
        "model.safetensors",
        "2_Dense/model.safetensors",
        "2_Dense/pytorch_model.bin",
        "onnx/model.safetensors",
    ]
    assert weight_files("a/b", layered, None) == ["model.safetensors"]
    assert weight_files("a/b", [*layered, "modules.json"], None) == layered[:2]
    with pytest.raises(HubError, match="Mistral's own layout"):
        weight_files("a/b", ["consolidated.safetensors", "params.json"], None)
    assert weight_files("a/b", ["model.safetensors", "consolidated.safetensors"], None) == [
        "model.safetensors"
    ]
    for names, words in ((["a.gguf"], "GGUF"), (["onnx/a.onnx"], "ONNX"), (["README.md"], "no weights")):
        with pytest.raises(HubError, match=words):
            weight_files("a/b", names, None)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("Qwen/Qwen3-0.6B", True), ("a/b", True), ("gpt2", False), ("./a/b", False), ("../b", False), ("a/b/c", False),
        ("/a/b", False), ("a/", False), ("~/b", False), ("a/..", False), ("-a/b", False), ("a/b\n", False),
    ],
)  # fmt: skip
def test_hub_names(text: str, is_one: bool) -> None:
    assert hub_name(text) == (HubName(text) if is_one else None)


@pytest.mark.parametrize(
    ("link", "named"),
    [
        ("https://huggingface.co/Qwen/Qwen3-0.6B", ("Qwen/Qwen3-0.6B", None)),
        ("https://www.huggingface.co/Qwen/Qwen3-0.6B/", ("Qwen/Qwen3-0.6B", None)),
        ("HTTPS://hf.co/Qwen/Qwen3-0.6B?library=transformers#use", ("Qwen/Qwen3-0.6B", None)),
        ("https://huggingface.co/a/b/tree/main", ("a/b", "main")),
        ("https://huggingface.co/a/b/tree/refs%2Fpr%2F3", ("a/b", "refs/pr/3")),
        ("http://mirror.example:8080/a/b", ("a/b", None)),
        ("https://huggingface.co/a/b/blob/main/config.json", None),
        ("https://huggingface.co/a/b/blob/v1/sub/x%20y.gguf", ("a/b", "v1", "sub/x y.gguf")),
        ("https://huggingface.co/a/b/resolve/main/x.gguf?download=true", ("a/b", "main", "x.gguf")),
        ("https://huggingface.co/a/b/blob/main/../x.gguf", None),
        ("https://huggingface.co/a/b/tree/main/sub", None),
        ("https://huggingface.co/datasets/a/b", None),
        ("https://huggingface.co/a", None),
        ("https://huggingface.co/../b", None),
        ("https://huggingface.co.example/a/b", None),
        ("https://user@example.org/a/b", None),
        ("https://[/a/b", None),
        ("file://huggingface.co/a/b", None),
        ("huggingface.co/a/b", ("a/b",)),
    ],
)
def test_links(link: str, named: tuple[str | None, ...] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror.example:8080")
    assert hub_name(link) == (None if named is None else HubName(*named))  # type: ignore[arg-type]


@pytest.mark.long(every=3)
@pytest.mark.parametrize(
    "address", ["hub.example", "127.0.0.1:1", "ftp://hub.example", "http://", "http://[::1"]
)
async def test_an_endpoint_that_is_no_url_is_a_mistake(
    address: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    assert f"HF_ENDPOINT is {address!r}; it should be" in await error(cache)


async def test_a_password_in_the_endpoint_is_not_shown(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "ftp://user:secret@hub.example")
    message = await error(cache)
    assert "HF_ENDPOINT is 'hub.example'" in message and "secret" not in message


@pytest.mark.parametrize(
    ("text", "gguf"),
    [
        ("a/b:Q4_K_M", "Q4_K_M"),
        ("a/b:UD-Q2_K_XL", "UD-Q2_K_XL"),
        ("a/b/x.gguf", "x.gguf"),
        ("a/b/c/x.gguf", "c/x.gguf"),
    ],
)
def test_names_of_gguf_files(text: str, gguf: str) -> None:
    assert hub_name(text) == HubName("a/b", None, gguf)
    assert HubModel("a/b", gguf=gguf).label == text


GGUFS = {"x-Q8_0.gguf": 3 * MIB, "x-Q4_K_M.gguf": 2 * MIB, "mmproj-x-F16.gguf": MIB}
PARTS = {f"big/x-Q6_K-0000{i}-of-00002.gguf": MIB for i in (1, 2)}


@pytest.fixture
def ggufs(hub: FakeHub) -> FakeHub:
    """The repository with GGUF files and no safetensors."""
    for name in (*SHARDS, "model.safetensors.index.json", "config.json", "model.gguf"):
        (hub.folder / name).unlink()
    for number, (name, size) in enumerate({**GGUFS, **PARTS}.items()):
        (hub.folder / name).parent.mkdir(exist_ok=True)
        (hub.folder / name).write_bytes(bytes([number + 1]) * size)
    return hub


@pytest.mark.long(every=3)
@pytest.mark.parametrize(
    ("wanted", "files"),
    [
        (None, ["x-Q4_K_M.gguf"]), ("Q8_0", ["x-Q8_0.gguf"]), ("q8_0", ["x-Q8_0.gguf"]), ("x-Q8_0.gguf", ["x-Q8_0.gguf"]),
        ("Q6_K", list(PARTS)), (next(iter(PARTS)), list(PARTS)),
    ],
)  # fmt: skip
async def test_one_gguf_model_and_nothing_else(
    ggufs: FakeHub, url: str, cache: Path, wanted: str | None, files: list[str]
) -> None:
    reports: list[tuple[int, int]] = []
    path = await fetch(HubModel(NAME, None, str(cache), gguf=wanted), lambda *report: reports.append(report))
    folder = path.parents[files[0].count("/")]
    assert path == folder / files[0]
    assert names_in(folder) == set(files)
    assert all(sha256(folder / name) == sha256(ggufs.folder / name) for name in files)
    total = sum((ggufs.folder / name).stat().st_size for name in files)
    assert reports[-1] == (total, total)
    ggufs.requests.clear()
    assert await fetch(HubModel(NAME, None, str(cache), gguf=wanted), lambda *_: None) == path
    assert not [one for _, one, _ in ggufs.requests if one.startswith("/cdn/")]


async def test_a_gguf_download_goes_on_after_a_cut(ggufs: FakeHub, url: str, cache: Path) -> None:
    ggufs.cuts = [MIB + 5000]
    path = await fetch(HubModel(NAME, None, str(cache), gguf="Q8_0"), lambda *_: None)
    assert sha256(path) == sha256(ggufs.folder / path.name)
    assert ggufs.ranges() == [f"bytes={MIB}-"]


@pytest.mark.long(every=2)
@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("Q2_K", f"{NAME} has no GGUF file Q2_K; name one of them: {NAME}:Q6_K (2 MiB, fits), "),
        ("y.gguf", f"{NAME} has no GGUF file y.gguf; name one of them: "),
        ("mmproj-x-F16.gguf", "is part of another file, or a model for images"),
        ("big/x-Q6_K-00002-of-00002.gguf", "is part of another file"),
    ],
)
async def test_gguf_files_that_are_not_there(
    ggufs: FakeHub, url: str, cache: Path, wanted: str, words: str
) -> None:
    with pytest.raises(HubError) as caught:
        await fetch(HubModel(NAME, None, str(cache), gguf=wanted), lambda *_: None)
    assert words in str(caught.value)
    assert not [one for _, one, _ in ggufs.requests if one.startswith("/cdn/")]


async def test_safetensors_come_before_gguf_files(hub: FakeHub, url: str, cache: Path) -> None:
    folder = await get(cache)
    assert (folder / SHARDS[0]).exists() and not (folder / "model.gguf").exists()
    only = await fetch(HubModel(NAME, None, str(cache), gguf="model.gguf"), lambda *_: None)
    assert only == folder / "model.gguf"


async def test_a_gguf_file_without_a_network(
    ggufs: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ggufs.serving() as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        path = await fetch(HubModel(NAME, None, str(cache)), lambda *_: None)
    forget_listings(cache)
    assert await fetch(HubModel(NAME, None, str(cache)), lambda *_: None) == path


def test_the_child_ends_with_its_parent(hub: FakeHub, url: str, cache: Path) -> None:
    hub.hold_after = MIB
    job = json.dumps(
        {
            "name": NAME,
            "revision": None,
            "download_dir": str(cache),
            "weights": True,
            "gguf": None,
            "adapter": False,
        }
    )
    child = subprocess.Popen(
        run.command("server.hub.download_process", job),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
    )
    assert child.stdin is not None and child.stdout is not None
    with child.stdout:
        try:
            assert b"small" in child.stdout.readline()
            child.stdin.write(b"\n")
            child.stdin.flush()
            assert b"progress" in child.stdout.readline()
            child.stdin.close()  # what the kernel does when the parent is gone
            assert child.wait(5) == 1
        finally:
            child.kill()
            child.wait()


async def test_a_child_that_dies_is_a_sentence(
    url: str, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("raise SystemExit('no such interpreter')")
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path / 'broken.py'}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    assert await error(cache, passes=True) == (
        f"{NAME} could not be fetched: the download process ended: no such interpreter"
    )


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("score.weight", False), ("model.mtp.layers.0.mlp.up_proj.weight", False), ("vision_tower.layers.0.mlp.weight", False),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", False), ("model.norm.weight", True), ("lm_head.weight", True),
    ],
)  # fmt: skip
def test_a_shard_that_is_not_there_is_missed_where_it_is_needed(name: str, needed: bool) -> None:
    index = {"weight_map": {"model.embed_tokens.weight": "1.safetensors", name: "2.safetensors"}}
    paths = ["model.safetensors.index.json", "1.safetensors"]
    if not needed:
        assert weight_files("a/b", paths, index) == ["1.safetensors"]
        return
    with pytest.raises(HubError, match=r"2\.safetensors is missing, though its model"):
        weight_files("a/b", paths, index)


def test_an_index_that_stayed_when_the_shards_were_joined() -> None:
    paths = ["model.safetensors.index.json", "model.safetensors"]
    assert weight_files("a/b", paths, {"weight_map": {"a": "model-1-of-2.safetensors"}}) == [
        "model.safetensors"
    ]
