"""Seconds until the first token of a streamed answer, of any server that speaks OpenAI's events."""

from __future__ import annotations

import json
import time
import urllib.request
from http.client import HTTPResponse
from typing import Any


def post(url: str, body: dict[str, Any]) -> HTTPResponse:
    """Return the answer of a call, its body not yet read. Prompts of minutes are waited for."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    answer: HTTPResponse = urllib.request.urlopen(request, timeout=7200)
    return answer


def first_token(url: str, body: dict[str, Any], tokens: int) -> float:
    """Ask greedily for `tokens` tokens and read them all; return seconds until the first event that has text."""
    body |= {"max_tokens": tokens, "stream": True, "temperature": 0, "ignore_eos": True}
    began, first = time.monotonic(), 0.0
    with post(url, body) as answer:
        for line in answer:
            if not first and line.startswith(b"data: {") and b'"content":""' not in line:
                first = time.monotonic() - began
    return first
