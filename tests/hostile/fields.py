"""Bodies with one thing wrong: a valid body, and one field that holds what it must not. Drawn by hypothesis.

Every value drawn is invalid by construction, so that each answer has to be a 400 naming that field.
"""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from executors.contract import MAX_REPETITION_PENALTY, MIN_REPETITION_PENALTY
from tests.hostile.case import Hostile, call, encoded, raw

Values = SearchStrategy[Any]

CHAT, COMPLETION, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
MESSAGES, COUNT_TOKENS = "/v1/messages", "/v1/messages/count_tokens"
RESPONSES = "/v1/responses"
RERANK, SCORE = "/v1/rerank", "/v1/score"
OLLAMA_CHAT, OLLAMA_GENERATE, OLLAMA_SHOW = "/api/chat", "/api/generate", "/api/show"
OLLAMA_EMBED, OLLAMA_EMBEDDINGS = "/api/embed", "/api/embeddings"
MODEL = "cohort-tiny"
USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
ANTHROPIC_TOOL = {"name": "look_up", "input_schema": {"type": "object"}}
RESPONSES_TOOL = {"type": "function", "name": "look_up", "parameters": {"type": "object"}}
VALID: dict[str, dict[str, Any]] = {
    RESPONSES: {"input": "Hi", "max_output_tokens": 2},
    OLLAMA_CHAT: {"model": MODEL, "messages": [USER], "options": {"num_predict": 2}},
    OLLAMA_GENERATE: {"model": MODEL, "prompt": "Hi", "options": {"num_predict": 2}},
    OLLAMA_EMBED: {"model": MODEL, "input": "Hi"},
    OLLAMA_EMBEDDINGS: {"model": MODEL, "prompt": "Hi"},
    OLLAMA_SHOW: {"model": MODEL},
    MESSAGES: {"model": MODEL, "messages": [USER], "max_tokens": 2},
    COUNT_TOKENS: {"model": MODEL, "messages": [USER]},
    CHAT: {"messages": [USER], "max_tokens": 2},
    COMPLETION: {"prompt": "Hi", "max_tokens": 2},
    EMBEDDINGS: {"input": "Hi"},
    RERANK: {"query": "Hi", "documents": ["a", "b"]},
    SCORE: {"text_1": "Hi", "text_2": ["a", "b"]},
    TOKENIZE: {"prompt": "Hi"},
    DETOKENIZE: {"tokens": [5, 6]},
}
GENERATING = (CHAT, COMPLETION, MESSAGES)

_TEXT = st.text(max_size=12)
_LISTS: Values = st.lists(st.none() | st.booleans() | st.integers() | _TEXT, max_size=3)
_OBJECTS: Values = st.dictionaries(_TEXT, st.none() | st.integers() | _TEXT, max_size=3)
_HUGE = st.sampled_from([raw("1" + "0" * zeros) for zeros in (20, 40, 400, 4000)])
_NO_NUMBERS = st.sampled_from([float("nan"), float("inf"), float("-inf"), raw("1e999"), raw("-1e999")])
SURROGATE = st.sampled_from(["\ud800", "a\udfff", "\udc00\ud800", "x" * 50 + "\ud83d"])


def bad(kind: str, path: str, param: str | None, **members: Any) -> Hostile:
    """A valid body but for these members; the error has to name `param`."""
    return call(kind, path, {**VALID[path], **members}, param)


def other_than(*kinds: str) -> Values:
    """JSON values of any kind but these; never null, which means "not given"."""
    by_kind: dict[str, Values] = {
        "boolean": st.booleans(),
        "number": st.integers() | st.floats(allow_nan=False, allow_infinity=False),
        "text": _TEXT,
        "list": _LISTS,
        "object": _OBJECTS,
    }
    return st.one_of(*(values for kind, values in by_kind.items() if kind not in kinds))


def no_number(least: float | None, most: float | None, whole: bool) -> Values:
    """What is no number between these, both included."""
    wrong = [other_than("number"), _NO_NUMBERS, st.sampled_from(["1", "0", "-1", "NaN", "1e3", ""])]
    if least is not None:
        wrong.append(
            st.integers(max_value=int(least) - 1) | st.floats(max_value=least - 0.01, allow_infinity=False)
        )
    if most is not None:
        wrong += [
            st.integers(min_value=int(most) + 1),
            st.floats(min_value=most * 1.01 + 1, allow_infinity=False),
        ]
        wrong.append(_HUGE)
    if whole:
        wrong.append(
            st.floats(allow_nan=False, allow_infinity=False).filter(lambda value: not value.is_integer())
        )
    return st.one_of(*wrong)


def no_ids(width: int, longest: int, empty_too: bool) -> Values:
    """Lists in which something is no id of a model with `width` logits; or that are too long, or no lists."""
    bad = st.one_of(
        st.integers(min_value=width),
        st.integers(max_value=-1),
        st.sampled_from(
            [width, 2**31 - 1, 2**31, 2**32, 2**63, 2**64, -(2**63), True, False, None, "5", 1.5, []]
        ),
        _NO_NUMBERS,
    )
    good = st.lists(st.integers(0, width - 1), max_size=6)
    lists = st.builds(lambda before, wrong, after: [*before, wrong, *after], good, bad, good)
    wrong = [lists, other_than("list")]
    if longest <= 4096:
        wrong.append(st.integers(longest + 1, longest + 50).map(lambda count: [5] * count))
    if empty_too:
        wrong.append(st.just([]))
    return st.one_of(*wrong)


def no_texts(longest: int, most: int) -> Values:
    """Neither a text nor a list of texts, of which there are at most `most`, none empty or with more than `longest`."""
    bad = other_than("text") | st.none() | st.just("") | st.just("x" * (longest + 1))
    lists = st.builds(lambda before, wrong: [*before, wrong], st.lists(st.just("x"), max_size=3), bad)
    return st.one_of(lists, st.just(["x"] * (most + 1)))


def no_text(longest: int, least: int = 1) -> Values:
    """No text, or one that is too long or (with `least` 1) empty."""
    too_long = st.integers(longest + 1, 2 * longest).map(lambda count: "x" * count)
    return st.one_of(other_than("text"), too_long, *([st.just("")] if least else []))


@functools.cache
def bad_fields(width: int, context: int) -> dict[str, dict[str, Values]]:
    """For each path, fields and what they must not hold, given the model's logits and its context in tokens."""
    ids = no_ids(width, 128, False)
    biases = st.one_of(
        other_than("object"),
        st.dictionaries(st.integers(min_value=width, max_value=2**40).map(str), st.just(1), min_size=1),
        st.dictionaries(
            st.sampled_from(["-1", "1.5", "x", "", "1e2", " 5", "٣", "0x5"]), st.just(1), min_size=1
        ),
        st.builds(
            lambda token, bias: {str(token): bias}, st.integers(0, width - 1), no_number(-100, 100, False)
        ),
        st.just({str(number): 1 for number in range(1025)}),
    )
    stop = st.one_of(other_than("text", "list"), no_texts(1024, 16), st.just(""), st.just("x" * 1025))
    flag = other_than("boolean")
    generating: dict[str, Values] = {
        "n": no_number(1, 128, True), "temperature": no_number(0, 100, False), "top_p": no_number(0, 1, False),
        "top_k": no_number(-1, 2**31 - 1, True), "min_p": no_number(0, 1, False), "typical_p": no_number(0, 1, False),
        "repetition_penalty": no_number(MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY, False),
        "presence_penalty": no_number(-2, 2, False), "frequency_penalty": no_number(-2, 2, False),
        "min_tokens": no_number(0, 2**31 - 1, True), "seed": no_number(-(2**63), 2**64 - 1, True),
        "priority": no_number(-(2**63), 2**63 - 1, True), "deadline_ms": no_number(1, 86_400_000, True),
        "max_tokens": no_number(0, context, True), "max_completion_tokens": no_number(1, context, True),
        "prompt_logprobs": no_number(0, 20, True), "truncate_prompt_tokens": no_number(-1, context, True) | st.just(0),
        "stop_token_ids": ids, "allowed_token_ids": no_ids(width, 4096, True), "logit_bias": biases, "stop": stop,
        "bad_words": st.one_of(other_than("list"), no_texts(64, 128), SURROGATE.map(lambda text: [text])),
        "cache_salt": no_text(1024), "stream_options": other_than("object"), "model": no_text(1024, 0),
        "truncation_side": no_text(8), "response_format": other_than("object"), "structured_outputs": other_than("object"),
        **dict.fromkeys(
            ("stream", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "add_special_tokens",
             "return_token_ids", "return_tokens_as_token_ids"), flag),
    }  # fmt: skip
    id_lists = no_ids(width, 2**20, True).filter(lambda value: isinstance(value, list))
    prompts = st.one_of(
        other_than("text", "list"), id_lists, id_lists.map(lambda one: [[5], one]), st.just([["x"]]),
        st.just("x" * 300 * context), st.just(["x"] * 2049), SURROGATE,
    )  # fmt: skip
    messages = st.one_of(
        other_than("list"), st.just([]), st.lists(other_than("object") | st.none(), min_size=1, max_size=3),
        _bad_message().map(lambda message: [USER, message]), st.just([USER] * 4097),
    )  # fmt: skip
    tools = st.one_of(
        other_than("list"), st.lists(other_than("object"), min_size=1, max_size=3), st.just([TOOL] * 129),
        st.just([TOOL, TOOL]), _bad_tool().map(lambda tool: [tool]),
    )  # fmt: skip
    prompt_fields = {
        "model": no_text(1024, 0),
        "messages": _bad_anthropic_messages(),
        "system": _no_system(),
        "tools": st.one_of(
            other_than("list"),
            st.lists(other_than("object"), min_size=1, max_size=3),
            st.just([ANTHROPIC_TOOL] * 513),
            st.just([ANTHROPIC_TOOL] * 2),
            st.sampled_from(
                [[{}], [{"name": "f"}], [{"name": "a/b", "input_schema": {}}], [{"input_schema": {}}]]
            ),
            other_than("object").map(lambda schema: [{"name": "f", "input_schema": schema}]),
        ),
        "tool_choice": other_than("object")
        | st.sampled_from([{}, {"type": "x"}, {"type": "any"}, {"type": "tool"}]),
        "thinking": other_than("object")
        | st.sampled_from([{}, {"type": "x"}, {"type": "enabled", "budget_tokens": 0}]),
        "output_config": other_than("object")
        | st.sampled_from([{"effort": "huge"}, {"format": {}}, {"format": {"type": "x"}}]),
        "chat_template_kwargs": other_than("object"),
    }
    no_word = other_than("text") | st.sampled_from(["bananas", "", "HIGH", "x" * 1000])
    return {
        **_bad_ollama_fields(generating, tools),
        MESSAGES: {
            **prompt_fields,
            **{name: generating[name] for name in
               ("temperature", "top_p", "top_k", "seed", "priority", "deadline_ms", "cache_salt", "stream")},
            "max_tokens": no_number(1, 2**31 - 1, True),
            "stop_sequences": other_than("list") | no_texts(1024, 16),
        },
        COUNT_TOKENS: prompt_fields,
        RESPONSES: {
            **{name: generating[name] for name in
               ("model", "temperature", "top_p", "top_k", "seed", "priority", "deadline_ms", "cache_salt", "stream")},
            "max_output_tokens": no_number(1, 2**31 - 1, True),
            "top_logprobs": no_number(0, 20, True),
            "input": other_than("text", "list") | st.lists(other_than("object"), min_size=1, max_size=3),
            "instructions": other_than("text"),
            "tools": other_than("list") | st.lists(other_than("object"), min_size=1, max_size=3),
            "tool_choice": other_than("object") | st.sampled_from([{}, {"type": "x"}, {"type": "function"}]),
            "reasoning": other_than("object") | st.sampled_from([{"effort": "huge"}, {"summary": 5}]),
            "text": other_than("object") | st.sampled_from([{"format": {}}, {"format": {"type": "x"}}]),
            "include": other_than("list") | st.lists(other_than("text"), min_size=1, max_size=3),
            "metadata": other_than("object") | st.just({"a": 5}),
            "background": flag,
            "store": flag,
            "chat_template_kwargs": other_than("object"),
        },
        CHAT: {
            **generating, "messages": messages, "tools": tools, "logprobs": flag,
            "top_logprobs": no_number(0, 20, True), "chat_template_kwargs": other_than("object"),
            "tool_choice": other_than("text", "object") | st.sampled_from(["sometimes", "required", "look_up", {}]),
            "add_generation_prompt": flag, "continue_final_message": flag, "reasoning_effort": no_word,
            "verbosity": no_word,
        },
        COMPLETION: {
            **generating, "prompt": prompts, "logprobs": no_number(0, 20, True), "best_of": no_number(1, 128, True),
            "echo": flag, "suffix": other_than("text"),
        },
        RERANK: {
            "query": other_than("text") | st.just(""), "return_documents": flag, "use_activation": flag,
            "documents": other_than("list") | st.just([]) | st.lists(other_than("text", "object"), min_size=1, max_size=3),
            "top_n": no_number(0, 2**31 - 1, True), "instruction": no_text(4096), "cache_salt": no_text(1024),
            "truncate_prompt_tokens": no_number(-1, 2**31 - 1, True) | st.just(0), "model": no_text(1024, 0),
            "priority": no_number(-(2**63), 2**63 - 1, True), "deadline_ms": no_number(1, 86_400_000, True),
        },
        SCORE: {
            "text_1": other_than("text", "list") | st.just("") | st.just(["a", "b", "c"]),
            "text_2": other_than("text", "list") | st.sampled_from(["", [], ["a", ""], ["a"] * 3000]),
            "instruction": no_text(4096), "use_activation": flag,
        },
        EMBEDDINGS: {
            "instruction": no_text(4096), "prompt_name": other_than("text") | st.just("x" * 300),
            "input": prompts | st.just("") | st.just([""]), "dimensions": no_number(1, 256, True),
            "encoding_format": no_text(8), "pooling": no_text(8), "use_activation": flag, "cache_salt": no_text(1024),
            "deadline_ms": no_number(1, 86_400_000, True), "priority": no_number(-(2**63), 2**63 - 1, True),
            "truncate_prompt_tokens": no_number(-1, context, True) | st.just(0), "model": no_text(1024, 0),
        },
        TOKENIZE: {
            "prompt": other_than("text") | SURROGATE | st.just("x" * 300 * context), "model": no_text(1024, 0),
            "add_special_tokens": flag, "return_token_strs": flag,
            "truncate_prompt_tokens": no_number(-1, context, True) | st.just(0),
        },
        DETOKENIZE: {
            "tokens": no_ids(width, 2**20, False), "skip_special_tokens": flag, "model": no_text(1024, 0),
        },
    }  # fmt: skip


def _bad_ollama_fields(generating: dict[str, Values], tools: Values) -> dict[str, dict[str, Values]]:
    """The table of `bad_fields` for Ollama's API, made with those of a chat."""
    flag, own = other_than("boolean"), {"repeat_penalty": "repetition_penalty"}
    settings = {
        name: generating[own.get(name, name)]
        for name in ("temperature", "top_p", "top_k", "min_p", "typical_p", "repeat_penalty", "presence_penalty",
                     "frequency_penalty", "seed", "stop")
    } | {
        "num_predict": no_number(-(2**31), 2**31 - 1, True), "num_ctx": no_number(-(2**63), 2**63 - 1, True),
        "repeat_last_n": no_number(-1, 2**31 - 1, True), "max_tokens": no_number(-(2**31), 2**31 - 1, True),
    }  # fmt: skip
    options = st.one_of(
        other_than("object"),
        *(values.map(lambda value, name=name: {name: value}) for name, values in settings.items()),
    )
    common = {
        "model": no_text(1024), "options": options, "keep_alive": other_than("number", "text") | st.just("x" * 65),
        **{name: generating[name] for name in ("priority", "deadline_ms", "cache_salt")},
    }  # fmt: skip
    both = common | settings | {
        "stream": flag, "logprobs": flag, "top_logprobs": no_number(0, 20, True), "truncate": flag, "shift": flag,
        "think": other_than("boolean", "text") | st.sampled_from(["", "much", "HIGH"]),
        "format": other_than("text", "object") | st.sampled_from(["yaml", "JSON", {"type": "string", "pattern": "("}]),
    }  # fmt: skip
    messages = st.one_of(
        other_than("list"), st.lists(other_than("object") | st.none(), min_size=1, max_size=3),
        _bad_ollama_message().map(lambda message: [USER, message]), st.just([USER] * 4097),
    )  # fmt: skip
    images = other_than("list") | st.just(["AAAA"]) | st.lists(other_than("text"), min_size=1, max_size=3)
    inputs = other_than("text", "list") | st.sampled_from([[5], ["a", None]])
    return {
        OLLAMA_CHAT: {**both, "messages": messages, "tools": tools},
        OLLAMA_GENERATE: {
            **both, "prompt": other_than("text") | SURROGATE, "system": other_than("text"), "suffix": other_than("text"),
            "raw": flag, "images": images,
        },
        OLLAMA_EMBED: {
            **common, "input": inputs | SURROGATE, "dimensions": no_number(-(2**63), 2**63 - 1, True), "truncate": flag,
        },
        OLLAMA_EMBEDDINGS: {**common, "prompt": other_than("text") | SURROGATE},
        OLLAMA_SHOW: {"model": no_text(1024), "verbose": flag},
    }  # fmt: skip


def _bad_ollama_message() -> Values:
    """A message in Ollama's form in which one member is wrong."""
    calls = st.one_of(
        other_than("list"), st.lists(other_than("object"), min_size=1, max_size=2),
        st.sampled_from([[{}], [{"function": {}}], [{"function": {"name": 5}}],
                         [{"function": {"name": "f", "arguments": "{}"}}], [{"function": {"name": "f"}}] * 129]),
    )  # fmt: skip
    return st.one_of(
        st.builds(lambda role: {"role": role, "content": "x"}, other_than("text") | st.sampled_from(["wizard", ""]) | st.none()),
        st.builds(lambda content: {"role": "user", "content": content}, other_than("text")),
        st.builds(lambda text: {"role": "user", "content": text}, SURROGATE),
        st.builds(lambda wrong: {"role": "assistant", "content": "", "tool_calls": wrong}, calls),
        st.builds(lambda wrong: {**USER, "images": wrong}, other_than("list") | st.just(["AAAA"])),
        st.builds(lambda wrong: {"role": "tool", "content": "x", "tool_name": wrong}, other_than("text")),
    )  # fmt: skip


def _no_system() -> Values:
    """No system prompt."""
    blocks = st.one_of(
        other_than("object"), st.sampled_from([{}, {"type": "text"}, {"type": "x", "text": "x"}])
    )
    return other_than("text", "list") | blocks.map(lambda block: [block]) | SURROGATE


def _bad_anthropic_messages() -> Values:
    """Messages in Anthropic's form of which one is wrong."""
    blocks = st.one_of(
        other_than("object"),
        st.sampled_from(
            [
                {}, {"type": "text"}, {"type": "text", "text": 5}, {"type": "image", "source": {"type": "url", "url": "http://x"}},
                {"type": "tool_result"}, {"type": "tool_result", "tool_use_id": 5}, {"type": "wizard"},
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]},
                {"type": "tool_result", "tool_use_id": "a", "content": 5},
            ]
        ),
        other_than("boolean").map(lambda odd: {"type": "tool_result", "tool_use_id": "a", "is_error": odd}),
    )  # fmt: skip
    wrong = st.one_of(
        st.builds(lambda role: {"role": role, "content": "x"}, other_than("text") | st.sampled_from(["tool", "x"]) | st.none()),
        st.builds(lambda content: {"role": "user", "content": content}, other_than("text", "list") | st.none()),
        st.builds(lambda block: {"role": "user", "content": [block]}, blocks),
        st.builds(lambda text: {"role": "user", "content": text}, SURROGATE),
        st.just({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}),
    )  # fmt: skip
    return st.one_of(
        other_than("list"), st.just([]), st.lists(other_than("object") | st.none(), min_size=1, max_size=3),
        wrong.map(lambda message: [USER, message]), st.just([USER] * 4097),
    )  # fmt: skip


def _bad_message() -> Values:
    """A message in which one member is wrong."""
    parts = st.one_of(
        other_than("object"), st.just({}), st.just({"type": "text"}), st.just({"type": "text", "text": 5}),
        st.just({"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x"}}),
        st.just({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}),
    )  # fmt: skip
    calls = st.one_of(
        other_than("list"), st.lists(other_than("object"), min_size=1, max_size=2),
        st.sampled_from([[{}], [{"function": {}}], [{"function": {"name": 5}}], [{"type": "x", "function": {"name": "f"}}],
                         [{"function": {"name": "f", "arguments": 5}}], [{"function": {"name": "f"}}] * 129]),
    )  # fmt: skip
    return st.one_of(
        st.builds(lambda role: {"role": role, "content": "x"}, other_than("text") | st.just("wizard") | st.none()),
        st.builds(lambda content: {"role": "user", "content": content}, other_than("text", "list") | st.none()),
        st.builds(lambda part: {"role": "user", "content": [part]}, parts),
        st.builds(lambda text: {"role": "user", "content": text}, SURROGATE),
        st.builds(lambda wrong: {"role": "assistant", "content": "", "tool_calls": wrong}, calls),
        st.builds(lambda wrong: {**USER, "name": wrong}, other_than("text")),
        st.just({"role": "user", "content": [{"type": "text", "text": "x"}] * 1025}),
    )  # fmt: skip


def _bad_tool() -> Values:
    """A tool in which one member is wrong."""
    name = st.one_of(
        other_than("text"), st.sampled_from(["", "a b", "x" * 129, "ä", "a/b", "{{x}}"]), SURROGATE
    )
    return st.one_of(
        st.builds(lambda kind: {**TOOL, "type": kind}, other_than("text") | st.just("web_search")),
        st.builds(lambda wrong: {"type": "function", "function": {"name": wrong}}, name),
        st.builds(lambda wrong: {"type": "function", "function": wrong}, other_than("object") | st.none()),
        st.builds(
            lambda wrong: {"type": "function", "function": {"name": "f", "parameters": wrong}}, other_than("object")
        ),
    )  # fmt: skip


@st.composite
def one_bad_field(draw: st.DrawFn, width: int, context: int) -> Hostile:
    """A request with one field that holds what it must not."""
    table = bad_fields(width, context)
    path = draw(st.sampled_from(sorted(table)))
    name = draw(st.sampled_from(sorted(table[path])))
    value = draw(table[path][name])
    body = {**VALID[path], name: value}
    if name == "top_logprobs":
        body["logprobs"] = True
    if path in GENERATING and name != "stream" and draw(st.booleans()):
        body["stream"] = True  # the refusal comes before the stream
        if name == "prompt_logprobs" or name == "best_of":
            del body["stream"]
    if path == COMPLETION and name == "max_tokens" and value in (0, 0.0):
        body["max_tokens"] = -1
    # Half of a surrogate pair makes the whole body no JSON.
    param = None if b"\\ud" in encoded(value) else name
    return call(f"bad field of {path}", path, body, param)
