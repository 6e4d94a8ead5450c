"""Requests by the names of their settings, wherever these are kept."""

from dataclasses import fields, replace
from typing import Any, TypeVar

from engine.request import Request, RequestContext
from engine.text.embedding import EmbeddingRequest
from engine.text.generation import TextRequest
from executors.contract import SamplingParams

AnyRequest = TypeVar("AnyRequest", Request, TextRequest, EmbeddingRequest)

_SAMPLING = {field.name for field in fields(SamplingParams)} - {"seed", "choice", "stop_token_ids"}
_CONTEXT = {field.name for field in fields(RequestContext)}


def text_request(request_id: str, prompts: tuple[tuple[int, ...], ...], **settings: Any) -> TextRequest:
    """A call with these settings, sampling and others."""
    return changed(TextRequest(RequestContext(request_id, 0.0), prompts), **settings)


def changed(request: AnyRequest, **settings: Any) -> AnyRequest:
    """`request` with other settings."""
    for part, names in (("sampling", _SAMPLING), ("context", _CONTEXT)):
        if given := {name: settings.pop(name) for name in names & settings.keys()}:
            settings[part] = replace(getattr(request, part), **given)
    return replace(request, **settings)
