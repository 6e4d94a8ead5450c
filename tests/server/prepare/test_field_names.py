"""Each dialect's names of the fields at fault, from one map beside the conversion of its body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import BaseModel

from engine.errors import FIELD, ContextLengthExceeded, InvalidRequest, field
from server.apis.anthropic import convert as messages
from server.apis.anthropic.schema import MessagesRequest
from server.apis.ollama import convert as ollama
from server.apis.ollama.schema import OllamaChatRequest, OllamaEmbedRequest, OllamaGenerateRequest
from server.apis.responses import convert as responses
from server.apis.responses.schema import ResponsesRequest
from server.prepare import chat, completions, embeddings
from server.prepare.field_names import FieldNames, named
from server.prepare.prompts import place_in
from server.schemas.chat import ChatRequest
from server.schemas.completions import CompletionRequest
from server.schemas.embeddings import EmbeddingRequest
from server.schemas.hints import OTHER_NAMES, field_paths
from tests.server.fakes import House

USER = {"role": "user", "content": "Hi"}

# -- the map -----------------------------------------------------------------------------------------------------------


def test_rows_and_words() -> None:
    names = FieldNames(
        {
            "stop.*": "options.stop.*",
            "messages.*": "{prompt}",
            "tools.#.function.*": "{tool}.*",
            "response_format": "{format}",
            "grammar": "{nothing}",
        }
    ).of_body(prompt=place_in("prompt", ["a", "b"]), tool=["tools.4", "tools.7.tools.0"].__getitem__)
    names = names.of_body(format="text.format", nothing=None)
    for role, element, name in (
        ("stop", 0, "options.stop"),
        ("stop.3", 0, "options.stop.3"),
        ("stops", 0, "stops"),
        ("messages.0.content", 1, "prompt.1"),
        ("tools.1.function.parameters.a.b", 5, "tools.7.tools.0.parameters.a.b"),
        ("tools.0.function", 0, "tools.4"),
        ("tools.x.function", 0, "tools.x.function"),
        ("tools", 0, "tools"),
        ("response_format", 0, "text.format"),
        ("response_format.type", 0, "response_format.type"),
        ("grammar", 0, None),
        ("", 0, ""),
    ):
        assert names(role, element) == name, role


def test_a_body_has_words_of_its_own() -> None:
    names = FieldNames({"max_tokens": "{limit}"})
    one, other = names.of_body(limit="max_tokens"), names.of_body(limit="max_completion_tokens")
    assert (one("max_tokens"), other("max_tokens")) == ("max_tokens", "max_completion_tokens")


def test_refusals_alone_are_renamed() -> None:
    with pytest.raises(InvalidRequest) as refusal, named(FieldNames({"stop": "stop_sequences"})):
        raise InvalidRequest(f"'{FIELD}' is wrong", "stop")
    assert (refusal.value.param, refusal.value.message) == ("stop_sequences", "'stop_sequences' is wrong")


# -- the maps of the dialects ------------------------------------------------------------------------------------------

WORDS = {
    "tool": "tools",
    "format": "output_config.format",
    "limit": "max_completion_tokens",
    "prompt": "prompt",
    "text": "input",
}
OF_ENGINE = {"prompt", "input"}
DIALECTS: list[tuple[str, FieldNames, type[BaseModel]]] = [
    ("chat", chat.FIELD_NAMES, ChatRequest),
    ("completions", completions.FIELD_NAMES, CompletionRequest),
    ("embeddings", embeddings.FIELD_NAMES, EmbeddingRequest),
    ("messages", messages.FIELD_NAMES, MessagesRequest),
    ("responses", responses.FIELD_NAMES, ResponsesRequest),
    ("ollama chat", ollama.CHAT_NAMES, OllamaChatRequest),
    ("ollama generate", ollama.PROMPT_NAMES, OllamaGenerateRequest),
    ("ollama embed", ollama.VECTOR_NAMES, OllamaEmbedRequest),
]


def plain(path: str) -> str:
    return ".".join(part for part in path.split(".") if part not in ("#", "*"))


@pytest.mark.parametrize(("names", "body"), [row[1:] for row in DIALECTS], ids=[row[0] for row in DIALECTS])
def test_every_row_leads_from_a_role_to_a_field_of_the_body(names: FieldNames, body: type[BaseModel]) -> None:
    roles = (
        field_paths(ChatRequest) | field_paths(CompletionRequest) | field_paths(EmbeddingRequest) | OF_ENGINE
    )
    roles |= {"tool_choice.function.name"}  # `tool_choice` has no schema
    own = field_paths(body) | {"tool_choice.name", "tool_choice.disable_parallel_tool_use"}
    for role, name in names.rows.items():
        assert plain(role) in roles, role
        assert plain(name.format(**WORDS)) in own, (role, name)


@pytest.mark.parametrize(("names", "body"), [row[1:] for row in DIALECTS], ids=[row[0] for row in DIALECTS])
def test_hints_use_the_same_names(names: FieldNames, body: type[BaseModel]) -> None:
    """Of what a body has under another name."""
    bound = names.of_body(**WORDS)
    for role, others in OTHER_NAMES.items():
        name = bound(role)
        if role not in field_paths(body) and role in names.rows and name is not None:
            assert name in others or name == "input", (role, name)


# -- refusals of the engine --------------------------------------------------------------------------------------------

TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
ASKED: list[tuple[str, Mapping[str, Any], dict[str, str]]] = [
    ("/v1/chat/completions", {"messages": [USER], "max_tokens": 9},
     {"prompt": "messages", "max_tokens": "max_tokens", "stop": "stop"}),
    ("/v1/chat/completions", {"messages": [USER], "max_completion_tokens": 9},
     {"prompt": "messages", "max_tokens": "max_completion_tokens", "stop": "stop"}),
    ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 9},
     {"prompt": "prompt.0", "max_tokens": "max_tokens", "stop": "stop"}),
    ("/v1/messages", {"messages": [USER], "max_tokens": 9},
     {"prompt": "messages", "max_tokens": "max_tokens", "stop": "stop_sequences"}),
    ("/v1/responses", {"input": "Hi"},
     {"prompt": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"}),
    ("/api/chat", {"messages": [USER]},
     {"prompt": "messages", "max_tokens": "options.num_predict", "stop": "options.stop", "top_p": "options.top_p"}),
    ("/api/generate", {"prompt": "Hi"},
     {"prompt": "prompt", "max_tokens": "options.num_predict", "stop": "options.stop"}),
    ("/api/generate", {"prompt": "Hi", "raw": True},
     {"prompt": "prompt", "max_tokens": "options.num_predict", "repetition_penalty": "options.repeat_penalty"}),
    ("/v1/embeddings", {"input": ["a", "b"]}, {"prompt": "input.0", "input": "input.0"}),
    ("/api/embed", {"input": ["a", "b"]}, {"prompt": "input.0", "input": "input.0"}),
    ("/api/embeddings", {"prompt": "a"}, {"prompt": "prompt", "input": "prompt"}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "names"), ASKED, ids=lambda one: str(one)[:40])
async def test_the_engine_s_refusals_have_the_names_of_the_body(
    house: House, path: str, body: Mapping[str, Any], names: Mapping[str, str]
) -> None:
    """At fault and beside it; a word of the client's that is spelled like a role stays as it is."""
    for role, name in names.items():
        message = f"'{FIELD}' and '{field('max_tokens')}' are long, and a tool is named '{role}'"
        house.engine.refusal = ContextLengthExceeded(message, role)
        model = {"model": house.state.names[0]}
        response = await house.post(path, {**model, **body})
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        message = error if isinstance(error, str) else error["message"]
        limit = names.get("max_tokens", "max_tokens")
        assert f"'{name}' and '{limit}' are long, and a tool is named '{role}'" in message
        if isinstance(error, dict) and "param" in error:
            assert error["param"] == name
