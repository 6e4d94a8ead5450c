"""A field that an error message names is one that the same path takes.

The errors come from the server itself: from every parameter that a path refuses, from wrong values of every field that it has,
and from a list of what fields cannot say together.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from engine.errors import FIELD, ContextLengthExceeded, InvalidRequest
from server.answer.notation import ModelNotation
from server.apis.description import OPERATIONS
from server.openapi.operation import Operation
from server.schemas import extras
from server.schemas.base import field_names, parse
from server.schemas.extras import screen
from server.schemas.hints import ELSEWHERE, OTHER_NAMES, field_paths, fitted, inner_names
from tests.server.api_schema import described
from tests.server.fakes import House, error_of

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
LONG = "x" * 200_000
"""More characters than fit."""
POSTS = [
    operation for operation in OPERATIONS
    if operation.request is not None and not operation.path.endswith("lora_adapter") and "{" not in operation.path
]  # fmt: skip
BY_PATH = {operation.path: operation for operation in POSTS}
PARAMETERS = {
    *field_names(),
    *extras.UNSUPPORTED,
    *extras.HARMLESS,
    *(name for operation in POSTS for name in (*operation.request.rules.refused, *operation.request.rules.unsupported)),
}  # fmt: skip
"""Every name that some body has or that some path refuses."""
_PATH = re.compile(r"(?<![\w/.-])[a-z][a-z0-9]*(?:_[a-z0-9]+)*(?:\.[a-z0-9_]+)*")


def refusal(operation: Operation, body: dict[str, Any]) -> InvalidRequest | None:
    """What is wrong with a body, as far as its own fields tell."""
    assert operation.request is not None
    try:
        read = parse(operation.request, json.dumps(body).encode())
        screen(read)
        if hasattr(read, "check"):
            read.check()
    except InvalidRequest as error:
        return error
    return None


@functools.cache
def takes(path: str, name: str) -> bool:
    """Whether the server takes a parameter on a path: one with an odd value is not called unsupported or unknown. `name` has no
    positions; a path into an object has to be one of the schema."""
    operation = BY_PATH[path]
    assert operation.request is not None
    if name not in operation.request.model_fields:
        return name in field_paths(operation.request)
    error = refusal(operation, {**example_of(operation), name: {"odd": 1}})
    return error is None or error.code not in ("unsupported_parameter", "unknown_parameter")


def foreign(operation: Operation, sent: dict[str, Any], error: dict[str, Any]) -> list[str]:
    """The parameters that a message names and that are neither taken there nor what the client sent. About a fault within an
    object, the names of objects' fields stand for themselves, and so do those of the object at fault."""
    assert operation.request is not None
    param = str(error["param"] or "")
    inner = inner_names(operation.request) if "." in (param or error["message"]) else frozenset()
    paths = field_paths(operation.request)
    named = [one for one in mentioned(error["message"]) if not _sent(one, sent) and one not in inner]
    named = [one for one in named if f"{param}.{one}" not in paths]
    return [one for one in named if not takes(operation.path, re.sub(r"\.\d+", "", one))]


def mentioned(message: str) -> list[str]:
    """The parameters that a message names: in quotes, or by a word that is nothing else."""
    # Values that a field may have are no names.
    message = re.sub(r"should be (?:'[^']*'(?:, | or )?)+", "", message)
    quoted = re.findall(r"['`]([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*)['`]", message)
    prose = re.sub(r"/[a-z0-9_/]+|'[^']*'|\"[^\"]*\"|\{[^}]*\}", " ", message)
    words = [one for one in _PATH.findall(prose) if "_" in one]
    return [one for one in dict.fromkeys([*quoted, *words]) if one.split(".")[0] in PARAMETERS]


def _sent(name: str, body: Any) -> bool:
    """Whether the client itself sent this name, as a path or as any key or text of its body."""
    text = json.dumps(body)
    return all(f'"{step}"' in text for step in name.split(".") if not step.isdigit())


def example_of(operation: Operation) -> dict[str, Any]:
    return dict(next(iter(operation.examples.values())))


@pytest.mark.parametrize("operation", POSTS, ids=lambda operation: operation.path)
def test_hints_of_refused_parameters(operation: Operation) -> None:
    """Each is refused by its name, and what is to be used in its place is taken there."""
    assert operation.request is not None
    found = []
    for name in sorted(PARAMETERS - set(operation.request.model_fields)):
        sent = {name: {"odd": 1}}
        if (error := refusal(operation, {**example_of(operation), **sent})) is not None:
            assert error.param == name and f"'{name}'" in error.message
            found += [(name, error.message) for _ in foreign(operation, sent, vars(error))]
    assert not found


@pytest.mark.parametrize("name", ["safe_prompt", "prompt_mode", "system", "instructions"])
def test_a_chat_is_not_sent_to_itself(name: str) -> None:
    """Hints that quote a word which is no field would be lost, and the chat's own path named in their place."""
    error = refusal(
        BY_PATH["/v1/chat/completions"], {**example_of(BY_PATH["/v1/chat/completions"]), name: "x"}
    )
    assert error is not None and "begin 'messages' with one of the system" in error.message


def test_no_hint_of_a_chat_is_lost() -> None:
    chat = BY_PATH["/v1/chat/completions"]
    assert chat.request is not None
    refused = (refusal(chat, {**example_of(chat), name: {"odd": 1}}) for name in sorted(PARAMETERS))
    assert not [error.message for error in refused if error is not None and ELSEWHERE in error.message]


def test_constraints_that_only_a_chat_has_are_not_sent_to_formats() -> None:
    """The formats of Responses and Messages are JSON schemas: no place for an expression, a choice or a grammar."""
    for path in ("/v1/responses", "/v1/messages"):
        for name in ("guided_regex", "guided_choice", "guided_grammar"):
            error = refusal(BY_PATH[path], {**example_of(BY_PATH[path]), name: "a"})
            assert error is not None and "belongs to /v1/chat/completions" in error.message
    error = refusal(BY_PATH["/v1/responses"], {**example_of(BY_PATH["/v1/responses"]), "system": "a"})
    assert error is not None and "use 'instructions'" in error.message


WRONG: list[Any] = [
    5,
    -1,
    0,
    10**12,
    0.5,
    True,
    "",
    "x",
    [],
    [5],
    ["x"],
    [{}],
    [[5]],
    {},
    {"x": 1},
    {"type": "x"},
]


def mutated(operation: Operation) -> Iterator[dict[str, Any]]:
    """Bodies in which one field, or one of an object or of an element within it, is wrong."""
    schemas = described()["components"]["schemas"]
    whole = example_of(operation)
    for name, about in schemas[operation.request.__name__]["properties"].items():  # type: ignore[union-attr]
        for value in WRONG:
            yield {**whole, name: value}
        for inner in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(about)):
            for member in schemas[inner]["properties"]:
                for value in (5, "x", [5], {"x": 1}):
                    yield {**whole, name: {member: value}}
                    yield {
                        **whole,
                        name: [{**(whole[name][0] if _has_objects(whole, name) else {}), member: value}],
                    }


def _has_objects(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


@pytest.mark.parametrize("operation", POSTS, ids=lambda operation: operation.path)
def test_names_in_messages_about_wrong_values(operation: Operation) -> None:
    found, refused, bodies = [], 0, list(mutated(operation))
    for body in bodies:
        if (error := refusal(operation, body)) is not None:
            refused += 1
            found += [(one, error.message) for one in foreign(operation, body, vars(error))]
    assert not found
    assert refused > min(20, len(bodies) // 2)


@pytest.mark.long(every=3)
@pytest.mark.parametrize("operation", POSTS, ids=lambda operation: operation.path)
async def test_names_in_answers_about_wrong_values(operation: Operation) -> None:
    """The same by the whole route, which converts bodies."""
    house = House(names=("cohort-tiny",))
    found = []
    async with house.client() as client:
        for body in mutated(operation):
            response = await client.post(operation.path, json=body)
            if response.status_code != 200:
                error = error_of(response)
                found += [(one, error["message"]) for one in foreign(operation, body, error)]
    assert not found
    house.state.threads.close()


CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
OLLAMA, GENERATE, EMBED = "/api/chat", "/api/generate", "/api/embed"
FORMAT = {"type": "json_schema", "name": "x", "schema": {"type": "string", "pattern": "("}}
ANTHROPIC = {"model": "fake", "max_tokens": 5}
CALLED = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
TOGETHER: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [{**USER, "content": LONG}]}),
    (CHAT, {"messages": [USER], "min_tokens": 9, "max_tokens": 3}),
    (CHAT, {"messages": [USER], "tool_choice": "required"}),
    (CHAT, {"messages": [USER], "continue_final_message": True, "add_generation_prompt": True}),
    (TEXT, {"prompt": LONG}), (TEXT, {"prompt": "Hi", "max_tokens": 0}),
    (TEXT, {"prompt": "Hi", "best_of": 2, "n": 3}), (TEXT, {"prompt": "Hi", "suffix": "x"}),
    (TEXT, {"prompt": "Hi", "truncate_prompt_tokens": -1, "max_tokens": 9999}),
    (MESSAGES, {**ANTHROPIC, "messages": [{**USER, "content": LONG}]}),
    (MESSAGES, {**ANTHROPIC, "messages": [USER], "tool_choice": {"type": "any"}}),
    (MESSAGES, {**ANTHROPIC, "messages": [USER], "tools": [{"name": "f", "input_schema": {"type": "object"}}],
                "tool_choice": {"type": "tool", "name": "g"}}),
    (MESSAGES, {**ANTHROPIC, "messages": [USER], "tools": [{"name": "f", "input_schema": {"type": "array"}}],
                "tool_choice": {"type": "any"}}),
    (MESSAGES, {**ANTHROPIC, "messages": [USER], "output_config": {"format": FORMAT}}),
    (MESSAGES, {**ANTHROPIC, "messages": [USER], "output_format": FORMAT}),
    (MESSAGES, {**ANTHROPIC, "messages": [USER, {"role": "assistant", "content": [
        {"type": "tool_use", "id": "a", "name": "f", "input": {}}]}]}),
    ("/v1/messages/count_tokens", {"model": "fake", "messages": [{**USER, "content": [{"type": "image"}]}]}),
    (RESPONSES, {"input": LONG}), (RESPONSES, {"input": LONG, "max_output_tokens": 9}),
    (RESPONSES, {"input": LONG, "truncation": "auto"}),
    (RESPONSES, {"input": "Hi", "tool_choice": "required"}),
    (RESPONSES, {"input": "Hi", "text": {"format": FORMAT}}),
    (RESPONSES, {"input": "Hi", "tools": [{"type": "function", "name": "f", "parameters": {"type": "array"}}],
                 "tool_choice": "required"}),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
    (RESPONSES, {"input": "Hi", "background": True, "store": False}),
    (OLLAMA, {"model": "fake", "messages": [{**USER, "content": LONG}]}),
    (OLLAMA, {"model": "fake", "messages": [USER, CALLED]}),
    (OLLAMA, {"model": "fake", "messages": [USER], "format": {"type": "string", "pattern": "("}}),
    (OLLAMA, {"model": "fake", "messages": [USER], "response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"type": "string", "pattern": "("}}}}),
    (OLLAMA, {"model": "fake", "messages": [USER], "options": {"repeat_last_n": 5, "repeat_penalty": 1.5}}),
    (OLLAMA, {"model": "fake", "messages": [USER], "tools": [TOOL, TOOL]}),
    (GENERATE, {"model": "fake", "prompt": LONG}), (GENERATE, {"model": "fake", "prompt": LONG, "raw": True}),
    (GENERATE, {"model": "fake", "prompt": "Hi", "raw": True, "format": {"type": "string", "pattern": "("}}),
    (GENERATE, {"model": "fake", "prompt": "Hi", "system": "x", "raw": True}), (GENERATE, {"model": "fake", "suffix": "x"}),
    (EMBED, {"model": "fake", "input": LONG, "truncate": False}),
    ("/v1/embeddings", {"input": LONG}), ("/v1/embeddings", {"input": "x", "prompt_name": "a", "instruction": "b"}),
    ("/v1/embeddings", {"input": [[1]], "instruction": "b"}),
    ("/v1/rerank", {"query": "x", "documents": ["x", LONG]}), ("/v1/score", {"text_1": "x"}),
    ("/v1/score", {"text_1": "x", "text_2": LONG}),
    ("/v1/rerank", {"query": "x", "documents": ["x"], "truncate_prompt_tokens": 1}),
    ("/tokenize", {"prompt": LONG * 9, "messages": [USER]}), ("/tokenize", {"messages": []}),
]  # fmt: skip
"""Bodies whose fields are right one by one."""


@pytest.mark.parametrize(("path", "body"), TOGETHER, ids=lambda value: str(value)[:70])
async def test_names_in_messages_about_fields_together(path: str, body: dict[str, Any]) -> None:
    for notation in (ModelNotation(), ModelNotation(tools=None))[: 1 + ("tools" in body)]:
        house = House(notation=notation)
        house.core.executor.grammars = False
        async with house.client() as client:
            response = await client.post(path, json=body)
        assert response.status_code == 400, response.text
        error = error_of(response)
        assert not foreign(BY_PATH[path], body, error), error["message"]
        house.state.threads.close()


OF_ENGINE = [
    ContextLengthExceeded("the prompt has 500 tokens: no room is left for output", "prompt"),
    ContextLengthExceeded(f"the prompt has 5 and {FIELD} is 999", "max_tokens"),
    InvalidRequest(
        "'priority' has no effect: this server ignores priorities.", "priority", "unsupported_value"
    ),
    InvalidRequest("the grammar is too large", "grammar", "invalid_value"),
]
GENERATING: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [USER]}), (CHAT, {"messages": [USER], "max_completion_tokens": 9}), (TEXT, {"prompt": "Hi"}),
    (MESSAGES, {**ANTHROPIC, "messages": [USER]}), (RESPONSES, {"input": "Hi"}),
    (OLLAMA, {"model": "fake", "messages": [USER]}), (GENERATE, {"model": "fake", "prompt": "Hi"}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), GENERATING, ids=lambda value: str(value)[:70])
async def test_names_in_refusals_of_the_engine(house: House, path: str, body: dict[str, Any]) -> None:
    for one in OF_ENGINE:
        house.engine.refusal = copy.copy(one)
        async with house.client() as client:
            response = await client.post(path, json=body)
        error = error_of(response)
        assert response.status_code == 400 and not foreign(BY_PATH[path], body, error), error
        if error["param"] is not None:
            assert takes(path, error["param"])


def test_the_names_that_replace_others_exist() -> None:
    """Each is a field of some body, or it would never be given."""
    known = {path for operation in POSTS if operation.request for path in field_paths(operation.request)}
    for name, others in OTHER_NAMES.items():
        assert {name, *others} <= known


@pytest.mark.parametrize(
    ("path", "name", "told"),
    [
        (CHAT, "max_new_tokens", "use 'max_tokens'"),
        (RESPONSES, "max_new_tokens", "use 'max_output_tokens'"),
        (MESSAGES, "stop_words", "use 'stop_sequences'"),
        (MESSAGES, "grammar", "use 'output_config.format'"),
        (RESPONSES, "json_schema", "use 'text.format'"),
        (MESSAGES, "eos_token_id", ELSEWHERE),
        (TEXT, "functions", ELSEWHERE),
        ("/v1/rerank", "prompt", "use 'documents'"),
        ("/v1/score", "top_k", None),
    ],
)
def test_hints_in_the_names_of_a_body(path: str, name: str, told: str | None) -> None:
    model = BY_PATH[path].request
    assert model is not None and fitted(extras.HINTS[name], model) == told
