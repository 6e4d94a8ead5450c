"""The client of `cohort chat`: one conversation over an OpenAI-compatible API, streamed. Standard library only."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

_PATIENCE = 600.0
"""Seconds without a byte. A long prompt on a busy server takes its time."""

Messages = Sequence[Mapping[str, str]]


class ServerFault(Exception):
    """The server refused, or is none of the kind, or went away. One line."""


class ChatClient:
    """Speaks to one server. `options` go into every request as they are."""

    def __init__(self, url: str, key: str | None, model: str | None, options: Mapping[str, Any]) -> None:
        """Raises ServerFault for an address that is none."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:
            self._host = ""
        if parts.scheme not in ("http", "https") or not self._host:
            raise ServerFault(f"--url {url}: it should be an address such as http://127.0.0.1:8000")
        self.url = url
        self.model = model
        self._secure = parts.scheme == "https"
        # People give the base of the API as well as the server's address.
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._options = dict(options)
        self._headers = {"Content-Type": "application/json", "User-Agent": "cohort-chat"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def choose_model(self) -> str:
        """Ask for the server's models and take the first, unless one was named. Raises ServerFault and
        ConnectionRefusedError."""
        connection = self._connect()
        try:
            response = self._send(connection, "GET", "/v1/models", None)
            try:
                names = [card["id"] for card in json.loads(response.read())["data"]]
            except (ValueError, KeyError, TypeError):
                raise ServerFault(f"{self.url} is no server with an OpenAI-compatible API") from None
        finally:
            connection.close()
        if not names:
            raise ServerFault(f"{self.url} serves no model")
        if self.model is None:
            self.model = str(names[0])
        return self.model

    def stream(self, messages: Messages) -> Generator[tuple[str, str], None, None]:
        """Pieces of the answer, ("text" or "reasoning", piece), and at last ("finish", reason).

        Closing the generator ends the connection, upon which the server aborts the request. Raises ServerFault and
        ConnectionRefusedError.
        """
        body = {"model": self.model, "messages": list(messages), "stream": True, **self._options}
        connection = self._connect()
        try:
            response = self._send(connection, "POST", "/v1/chat/completions", json.dumps(body))
            reason = ""
            for line in self._lines(response):
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    yield "finish", reason
                    return
                for kind, piece in _pieces(data):
                    if kind == "finish":
                        reason = piece
                    else:
                        yield kind, piece
            raise ServerFault("the server closed the connection before the answer was complete")
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        if self._secure:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=_PATIENCE, context=ssl.create_default_context()
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=_PATIENCE)

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: str | None
    ) -> http.client.HTTPResponse:
        try:
            data = None if body is None else body.encode()
            connection.request(method, self._base + path, data, self._headers)
            response = connection.getresponse()
            if response.status != 200:
                raise ServerFault(_complaint(response))
            return response
        except ConnectionRefusedError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise ServerFault(f"{self.url}: {_reason(error)}") from None

    def _lines(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        try:
            while line := response.readline():
                yield line
        except (OSError, http.client.HTTPException) as error:
            raise ServerFault(f"the connection to the server broke off: {_reason(error)}") from None


def _pieces(data: bytes) -> Iterator[tuple[str, str]]:
    """What one event says. Raises ServerFault for an error that came in the middle of the stream."""
    try:
        event = json.loads(data)
    except ValueError:
        raise ServerFault("the server sent an event that is no JSON") from None
    if "error" in event:
        raise ServerFault(_message(event) or "the server ended the answer with an error")
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        if reasoning := delta.get("reasoning_content") or delta.get("reasoning"):
            yield "reasoning", str(reasoning)
        if text := delta.get("content"):
            yield "text", str(text)
        if reason := choice.get("finish_reason"):
            yield "finish", str(reason)


def _complaint(response: http.client.HTTPResponse) -> str:
    try:
        message = _message(json.loads(response.read(1 << 16)))
    except (ValueError, OSError, http.client.HTTPException):
        message = ""
    hint = "; give the key with --api-key" if response.status == 401 else ""
    return f"the server says {response.status}: {message or response.reason}{hint}"


def _message(body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    text = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(text).split())[:500] if text else ""


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing came for {_PATIENCE:g} s"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(text.split())
