"""`TextRequest`s by the names of their settings, wherever these are kept."""

from dataclasses import fields, replace
from typing import Any

from engine.text.generation import TextRequest
from executors.contract import SamplingParams

_SAMPLING = {field.name for field in fields(SamplingParams)} - {"seed", "choice", "stop_token_ids"}


def text_request(request_id: str, prompts: tuple[tuple[int, ...], ...], **settings: Any) -> TextRequest:
    """A call with these settings, sampling and others."""
    return changed(TextRequest(request_id, prompts), **settings)


def changed(request: TextRequest, **settings: Any) -> TextRequest:
    """`request` with other settings."""
    sampling = {name: settings.pop(name) for name in _SAMPLING & settings.keys()}
    return replace(request, sampling=replace(request.sampling, **sampling), **settings)
