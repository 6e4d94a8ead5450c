"""The client of `cohort chat`: one conversation over an OpenAI-compatible API, streamed. Standard library only."""

from __future__ import annotations

import http.client
import json
import re
import ssl
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from clients.address import BadAddress, parse_address
from clients.event_stream import EventReader
from server.commands.common import CONTROL

_PATIENCE = 600.0
"""Seconds without a byte. A long prompt on a busy server takes its time."""

_COUNT_IN_EACH_CHUNK = ("cohort", "vllm")
"""Servers, by `owned_by` of their models, that read a field which OpenAI's API does not have: others may refuse it."""
_KEY = re.compile(r"[\x20-\x7e]+")
_STRANGE = "the server sent an event that no OpenAI-compatible API has"

Messages = Sequence[Mapping[str, str]]


class ServerFault(Exception):
    """The server refused, or is none of the kind, or went away. One line."""


class ChatClient:
    """Speaks to one server. `options` go into every request as they are; the conversation may replace them."""

    def __init__(self, url: str, key: str | None, model: str | None, options: Mapping[str, Any]) -> None:
        """Raises ServerFault for an address that is none, and for a key that no header can carry."""
        try:
            self._secure, self._host, self._port, self._base = parse_address(url)
        except BadAddress as error:
            raise ServerFault(f"--url {error}") from None
        if key and not _KEY.fullmatch(key):
            raise ServerFault(
                "the key (--api-key or COHORT_API_KEY): it should be one line of ASCII characters"
            )
        self.url = url
        self.model = model
        self.options: Mapping[str, Any] = dict(options)
        self.card: Mapping[str, Any] = {}
        """What the server says of the model, once one is chosen."""
        self._headers = {"Content-Type": "application/json", "User-Agent": "cohort-chat"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def choose_model(self) -> str:
        """Ask for the server's models and take the first, unless one was named. Raises ServerFault and
        ConnectionRefusedError."""
        try:
            cards = {str(card["id"]): card for card in self.get("/v1/models")["data"]}
        except (KeyError, TypeError):
            raise self.unlike_openai() from None
        if not cards:
            raise ServerFault(f"{self.url} serves no model")
        if self.model is None:
            self.model = next(iter(cards))
        # An alias is not in the list; what holds of the first model holds of it most often.
        self.card = cards.get(self.model) or next(iter(cards.values()))
        return self.model

    @property
    def address(self) -> str:
        """The server's address with its scheme, without /v1."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        port = "" if self._port is None else f":{self._port}"
        return f"{'https' if self._secure else 'http'}://{host}{port}{self._base}"

    def get(self, path: str) -> Any:
        """The JSON at a path. Raises ServerFault and ConnectionRefusedError."""
        return self._exchange("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON that answers a body. Raises ServerFault and ConnectionRefusedError."""
        return self._exchange("POST", path, json.dumps(body))

    def _exchange(self, method: str, path: str, body: str | None) -> Any:
        connection = self._connect()
        try:
            response = self._send(connection, method, path, body)
            return json.loads(response.read())
        except ConnectionRefusedError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise ServerFault(f"{self.url}: {_reason(error)}") from None
        except (ValueError, RecursionError):
            raise self.unlike_openai() from None
        finally:
            connection.close()

    def unlike_openai(self) -> ServerFault:
        """The fault of a server that answers something else."""
        return ServerFault(f"{self.url} is no server with an OpenAI-compatible API")

    def stream(
        self, messages: Messages, *, count_tokens: bool = False
    ) -> Generator[tuple[str, str], None, None]:
        """Pieces of the answer, ("text" or "reasoning", piece), and at last ("finish", reason). With `count_tokens` also
        ("tokens", their number so far), from servers that tell it.

        Closing the generator ends the connection, upon which the server aborts the request. Raises ServerFault and
        ConnectionRefusedError.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "stream": True,
            **self.options,
        }
        if count_tokens:
            body["stream_options"] = {"include_usage": True}
            if self.card.get("owned_by") in _COUNT_IN_EACH_CHUNK:
                body["stream_options"]["continuous_usage_stats"] = True
        connection = self._connect()
        try:
            response = self._send(connection, "POST", "/v1/chat/completions", json.dumps(body))
            reason = ""
            events = EventReader()
            for line in self._lines(response):
                for data in events.feed(line):
                    for kind, piece in _pieces(data):
                        if kind == "tokens" and not count_tokens:
                            continue
                        if kind == "finish":
                            reason = piece
                        else:
                            yield kind, piece
                if events.done:
                    yield "finish", reason
                    return
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
        """The body's lines. The last one counts also where the connection ends without a line end."""
        try:
            while line := response.readline():
                yield line
            yield b"\n"
        except (OSError, http.client.HTTPException) as error:
            raise ServerFault(f"the connection to the server broke off: {_reason(error)}") from None


def _pieces(data: bytes) -> Iterator[tuple[str, str]]:
    """What one event says. Raises ServerFault for one that makes no sense, and for an error in the middle of the stream."""
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        raise ServerFault("the server sent an event that is no JSON") from None
    if not isinstance(event, dict):
        raise ServerFault(_STRANGE)
    if event.get("error") is not None:
        raise ServerFault(_message(event) or "the server ended the answer with an error")
    choices = event.get("choices") or []
    if not isinstance(choices, list):
        raise ServerFault(_STRANGE)
    for choice in choices:
        yield from _of_choice(choice)
    usage = event.get("usage")
    if isinstance(usage, dict) and isinstance(tokens := usage.get("completion_tokens"), int):
        yield "tokens", str(tokens)


def _of_choice(choice: Any) -> Iterator[tuple[str, str]]:
    delta = choice.get("delta") or {} if isinstance(choice, dict) else None
    if not isinstance(delta, dict):
        raise ServerFault(_STRANGE)
    reasoning, text = delta.get("reasoning_content") or delta.get("reasoning"), delta.get("content")
    for kind, piece in (("reasoning", reasoning), ("text", text), ("finish", choice.get("finish_reason"))):
        if isinstance(piece, str) and piece:
            yield kind, piece
        elif piece:
            raise ServerFault(_STRANGE)


def _complaint(response: http.client.HTTPResponse) -> str:
    try:
        message = _message(json.loads(response.read(1 << 16)))
    except (ValueError, RecursionError, OSError, http.client.HTTPException):
        message = ""
    hint = "; give the key with --api-key" if response.status == 401 else ""
    return f"the server says {response.status}: {message or CONTROL.sub('', response.reason)}{hint}"


def _message(body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    text = error.get("message") if isinstance(error, dict) else error
    return CONTROL.sub("", " ".join(str(text).split()))[:500] if text else ""


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing came for {_PATIENCE:g} s"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return CONTROL.sub("", " ".join(text.split()))
