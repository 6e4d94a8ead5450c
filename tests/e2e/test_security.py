"""Rules of docs/security.md that only real processes can show: what listens, what they hold, and whom they call."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.long

LISTENING = "0A"
USER = {"role": "user", "content": "Hi"}


def sockets_of(pid: int) -> set[str]:
    """Inodes of the sockets that a process holds."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:  # closed in the meantime
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def table(pid: int, name: str) -> dict[str, list[str]]:
    """A table of /proc/PID/net by inode; {} where this kernel has none."""
    file = Path(f"/proc/{pid}/net/{name}")
    lines = file.read_text().splitlines()[1:] if file.exists() else []
    column = 6 if name == "unix" else 9
    return {fields[column]: fields for fields in map(str.split, lines)}


def test_nothing_listens_but_http_and_processes_speak_over_inherited_pairs(
    tiny_server: ServerProcess,
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    body = {"messages": [USER], "max_tokens": 5, "structured_outputs": {"json": schema}}
    tiny_server.post("/v1/chat/completions", body)  # now there is a process that judges grammars, too
    children = tiny_server.children()
    assert len(children) == 2
    port = int(tiny_server.url.rpartition(":")[2])
    internet = ("tcp", "tcp6", "udp", "udp6", "raw", "raw6", "packet")
    for pid in (tiny_server.pid, *children):
        held = sockets_of(pid)
        assert held, "the way to the other process"
        ours = {name: [row for inode, row in table(pid, name).items() if inode in held] for name in internet}
        unix = [row for inode, row in table(pid, "unix").items() if inode in held]
        assert all(len(row) == 7 for row in unix), "a name in the file system, that others could open"
        if pid != tiny_server.pid:
            assert not any(ours.values()), (pid, ours)
            continue
        listening = [row for row in ours["tcp"] if row[3] == LISTENING]
        assert [row[1] for row in listening] == [f"0100007F:{port:04X}"], "loopback, unless told otherwise"
        assert all(row[1].endswith(f":{port:04X}") for row in ours["tcp"]), (
            "clients' connections, and no others"
        )
        assert not any(rows for name, rows in ours.items() if name != "tcp")


@contextmanager
def canary() -> Iterator[tuple[str, list[bytes]]]:
    """A web server that nobody has business with: its address, and what it was asked."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def listen() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(1)
                    heard.append(connection.recv(1000))
                    connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n{"type": "string"}')

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", heard
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)
    assert not thread.is_alive()


def with_urls(url: str) -> list[tuple[str, dict[str, Any], int | None]]:
    """(path, body, status) of requests with an address wherever one could be meant to be fetched."""

    def parts(*content: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": list(content)}], "max_tokens": 2}

    chat, remote = "/v1/chat/completions", {"$ref": f"{url}/schema.json"}
    schema = {"type": "object", "properties": {"a": remote}, "required": ["a"]}
    named = {"name": "n", "schema": schema}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
    return [
        (chat, parts({"type": "image_url", "image_url": {"url": f"{url}/cat.png"}}), 400),
        (chat, parts({"type": "input_image", "image_url": f"{url}/cat.png"}), 400),
        (chat, parts({"type": "input_audio", "input_audio": {"data": f"{url}/a.wav", "format": "wav"}}), 400),
        (chat, parts({"type": "video_url", "video_url": {"url": f"{url}/v.mp4"}}), 400),
        (chat, parts({"type": "file", "file": {"file_url": f"{url}/f.pdf"}}), 400),
        (chat, {"messages": [USER], "response_format": {"type": "json_schema", "json_schema": named}}, 400),
        (chat, {"messages": [USER], "structured_outputs": {"json": schema}}, 400),
        (chat, {"messages": [USER], "structured_outputs": {"json": {"$schema": f"{url}/x", **schema}}}, 400),
        (chat, {"messages": [USER], "structured_outputs": {"grammar": f"%import {url}/g.lark"}}, 400),
        (chat, {"messages": [USER], "tools": [tool], "tool_choice": "required"}, 400),
        (chat, {"messages": [USER], "chat_template": f"{url}/t.jinja"}, 400),
        (chat, {"messages": [USER], "model": f"{url}/model"}, 404),
        (chat, {"messages": [USER], "max_tokens": 2, "web_search_options": {"url": url}}, None),
        (chat, {"messages": [USER], "max_tokens": 2, "mm_processor_kwargs": {"url": url}}, None),
        (chat, {"messages": [USER | {"content": f"Fetch {url}/page"}], "max_tokens": 2}, 200),
        ("/v1/completions", {"prompt": f"{url}/prompt.txt", "max_tokens": 2}, 200),
        ("/v1/embeddings", {"input": f"{url}/text.txt"}, 200),
        ("/tokenize", {"prompt": f"{url}/text.txt"}, 200),
        (
            "/v1/completions",
            {"prompt": "Hi", "max_tokens": 2, "kv_transfer_params": {"remote_host": url}},
            None,
        ),
    ]


def test_no_address_in_a_request_is_ever_fetched(tiny_server: ServerProcess) -> None:
    with canary() as (url, heard):
        for path, body, status in with_urls(url):
            answer = tiny_server.post(path, body)
            assert answer.status_code == status or (status is None and answer.status_code in (200, 400)), (
                body,
                answer.text,
            )
        assert heard == []
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=5) as caller:
            caller.sendall(b"hello")
            assert caller.recv(15) == b"HTTP/1.1 200 OK", "it would have heard"
    assert heard == [b"hello"]


def test_with_a_salt_per_key_no_tenant_finds_what_another_has_asked(tmp_path: Path) -> None:
    args = [
        "cohort-tiny",
        "--api-key",
        "one",
        "--api-key",
        "two",
        "--cache-salt-per-key",
        "--kv-cache-memory-bytes",
        "16MiB",
    ]
    with ServerProcess(args, tmp_path) as server:

        def found(key: str) -> int:
            answer = httpx.post(
                f"{server.url}/v1/completions",
                json={"prompt": "the same long prompt " * 20, "max_tokens": 1},
                headers={"Authorization": f"Bearer {key}"},
                timeout=30,
            )
            assert answer.status_code == 200, answer.text
            return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert [found(key) > 0 for key in ("one", "one", "two", "two", "one")] == [
            False,
            True,
            False,
            True,
            True,
        ]
