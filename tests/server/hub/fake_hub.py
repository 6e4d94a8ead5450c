"""A hub on this machine: the part of the Hugging Face Hub's HTTP API that a download uses, from a folder.

    GET  /api/models/ORG/NAME[/revision/REV]      the commit of a revision
    GET  /api/models/ORG/NAME/tree/REV            all files, sizes, and SHA-256 of the large ones
    HEAD /ORG/NAME/resolve/REV/FILE               ETag, size, X-Repo-Commit; large files: 302 to the CDN
    GET  /cdn/SHA256                              their bytes, with Range

Large is what ends in .safetensors or .gguf. Faults are switched on by the attributes of `FakeHub`.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".gguf")


class FakeHub:
    """One repository, `name`, whose files are those of `folder`. Thread-safe enough for tests: attributes are only set."""

    def __init__(self, folder: Path, name: str = "acme/random-1m") -> None:
        self.folder, self.name = folder, name
        self.revisions = {"main": COMMIT, "v1": COMMIT, COMMIT: COMMIT}
        self.token: str | None = None
        """What a request for a file must send, else the repository is gated."""
        self.status: int | None = None
        """Answer everything with this."""
        self.cuts: list[int] = []
        """Bytes after which each of the next answers of the CDN breaks off."""
        self.hold_after: int | None = None
        """Bytes after which the CDN's answers wait for `go_on`."""
        self.go_on = threading.Event()
        self.pauses: list[float] = []
        """Seconds before each of the next answers."""
        self.sizes: dict[str, int] = {}
        """Lies about sizes."""
        self.lies: dict[str, bytes] = {}
        """Other bytes than the file has, by name."""
        self.requests: list[tuple[str, str, str | None]] = []
        """(method, path, Range) of every request."""
        self.tokens: set[str | None] = set()

    def files(self) -> dict[str, Path]:
        return {
            path.relative_to(self.folder).as_posix(): path
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }

    def fetched(self) -> list[str]:
        """Names of the files whose bytes were asked for."""
        prefix = f"/{self.name}/resolve/{COMMIT}/"
        return sorted(
            {path.removeprefix(prefix) for way, path, _ in self.requests if way == "GET" and prefix in path}
        )

    def ranges(self) -> list[str]:
        """The Range headers that the CDN saw."""
        return [found for _, path, found in self.requests if path.startswith("/cdn/") and found]

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Its URL while it runs."""
        handler = type("Handler", (_Handler,), {"hub": self})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            self.go_on.set()
            server.shutdown()
            server.server_close()
            thread.join()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub

    def log_message(self, *_: Any) -> None:
        """Tests read `requests`."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, path = self.hub, urlsplit(self.path).path
        hub.requests.append((self.command, path, self.headers.get("Range")))
        if hub.pauses:
            time.sleep(hub.pauses.pop(0))
        if hub.status is not None:
            self._send(hub.status)
        elif path.startswith("/cdn/"):
            self._cdn(path.removeprefix("/cdn/"))
        elif path.startswith("/api/models/"):
            self._api(path.removeprefix("/api/models/"))
        elif "/resolve/" in path:
            self._resolve(*path[1:].split("/resolve/"))
        else:
            self._send(404)

    def _api(self, path: str) -> None:
        hub = self.hub
        name, rest = "/".join(path.split("/")[:2]), path.split("/")[2:]
        if name != hub.name:
            return self._send(401, {"X-Error-Code": "RepoNotFound"})
        revision = rest[1] if len(rest) > 1 else "main"
        if revision not in hub.revisions:
            return self._send(404, {"X-Error-Code": "RevisionNotFound"})
        if rest and rest[0] == "tree":
            return self._json([self._entry(file, path) for file, path in hub.files().items()])
        self._json({"id": name, "modelId": name, "sha": hub.revisions[revision], "tags": [], "siblings": []})

    def _entry(self, file: str, path: Path) -> dict[str, Any]:
        size = self.hub.sizes.get(file, path.stat().st_size)
        entry: dict[str, Any] = {
            "type": "file",
            "path": file,
            "size": size,
            "oid": hashlib.sha1(file.encode()).hexdigest(),
        }
        if file.endswith(LARGE):
            entry["lfs"] = {"oid": sha256(path), "size": size, "pointerSize": 134}
        return entry

    def _resolve(self, name: str, rest: str) -> None:
        hub, (revision, _, file) = self.hub, rest.partition("/")
        sent = self.headers.get("Authorization")
        hub.tokens.add(sent)
        if hub.token is not None and sent != f"Bearer {hub.token}":
            return self._send(401 if sent is None else 403, {"X-Error-Code": "GatedRepo"})
        path = hub.files().get(file)
        if name != hub.name or path is None:
            return self._send(404, {"X-Error-Code": "EntryNotFound"})
        headers = {"X-Repo-Commit": hub.revisions[revision]}
        if file.endswith(LARGE):
            digest, size = sha256(path), hub.sizes.get(file, path.stat().st_size)
            headers |= {
                "X-Linked-Etag": f'"{digest}"',
                "X-Linked-Size": str(size),
                "Location": f"/cdn/{digest}",
            }
            # The real one sends an absolute address of another host; a relative one would be followed by HEAD.
            headers["Location"] = f"http://localhost:{self.server.server_port}/cdn/{digest}"
            return self._send(302, headers)
        headers["ETag"] = f'"{hashlib.sha1(path.read_bytes()).hexdigest()}"'
        self._send(200, headers, path.read_bytes())

    def _cdn(self, digest: str) -> None:
        hub = self.hub
        assert self.headers.get("Authorization") is None, "a token went to another host"
        file, path = next((f, p) for f, p in hub.files().items() if f.endswith(LARGE) and sha256(p) == digest)
        data = hub.lies.get(file, path.read_bytes())
        begin, status, headers = 0, 200, {"Content-Length": str(len(data))}
        if wanted := self.headers.get("Range"):
            begin, status = int(wanted.removeprefix("bytes=").rstrip("-")), 206
            headers = {
                "Content-Length": str(len(data) - begin),
                "Content-Range": f"bytes {begin}-{len(data) - 1}/{len(data)}",
            }
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        body = data[begin:]
        if hub.cuts:
            self.wfile.write(body[: hub.cuts.pop(0)])
            self.close_connection = True
        elif hub.hold_after is not None:
            self._slowly(body)
        else:
            self.wfile.write(body)

    def _slowly(self, body: bytes) -> None:
        hub = self.hub
        try:
            self.wfile.write(body[: hub.hold_after])
            self.wfile.flush()
            hub.go_on.wait(60)
            self.wfile.write(body[hub.hold_after :])
        except OSError:
            self.close_connection = True  # the download was ended

    def _json(self, value: Any) -> None:
        self._send(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def _send(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
