"""The fixed list: for each way in which servers of this kind were brought down by an input, that input.

`bodies` are JSON that must be refused. What is to be compiled is in `listed_grammars.py`, what is wrong around the body in
`listed_wire.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.hostile.case import Hostile, call, raw
from tests.hostile.fields import CHAT, COMPLETION, DETOKENIZE, EMBEDDINGS, TOKENIZE, TOOL, USER, VALID, bad


def bodies(width: int, context: int) -> Iterator[Hostile]:
    """For a model with so many logits and so many tokens of context."""
    yield from _unbounded()
    yield from _ids(width)
    yield from _numbers()
    yield from _prompts(context)
    yield from _templates()
    yield from _combined(context)


def _unbounded() -> Iterator[Hostile]:
    """Counts that multiply work."""
    kind = "unbounded"
    for path in (CHAT, COMPLETION):
        yield bad(kind, path, "n", n=10**6)
        yield bad(kind, path, "stop", stop=["x"] * 10_000)
        yield bad(kind, path, "stop", stop="x" * 10**6)
        yield bad(kind, path, "stop_token_ids", stop_token_ids=[5] * 10_000)
        yield bad(kind, path, "logit_bias", logit_bias={str(i): 1 for i in range(100_000)})
        yield bad(kind, path, "logit_bias", logit_bias={f"x{i}": "" for i in range(100_000)})
        yield bad(kind, path, "bad_words", bad_words=["x"] * 100_000)
        yield bad(kind, path, "bad_words", bad_words=["x" * 100_000])
        yield bad(kind, path, "allowed_token_ids", allowed_token_ids=[5] * 100_000)
        yield bad(kind, path, "prompt_logprobs", prompt_logprobs=10**6)
        yield bad(kind, path, "max_tokens", max_tokens=10**9)
        yield bad(kind, path, "cache_salt", cache_salt="x" * 10**6)
        yield bad(kind, path, None, **{f"key{i}": i for i in range(5000)})
    yield bad(kind, CHAT, "top_logprobs", logprobs=True, top_logprobs=129)
    yield bad(kind, CHAT, "top_logprobs", logprobs=True, top_logprobs=20, n=128)
    yield bad(kind, COMPLETION, "logprobs", logprobs=129)
    yield bad(kind, COMPLETION, "logprobs", logprobs=20, n=128)
    yield bad(kind, COMPLETION, "best_of", best_of=10**6)
    yield bad(kind, COMPLETION, "best_of", n=5, best_of=2)
    yield bad(kind, COMPLETION, "n", n=128, prompt=["x"] * 1024)
    yield bad(kind, COMPLETION, "prompt", prompt=["x"] * 100_000)
    yield bad(kind, COMPLETION, "prompt_logprobs", prompt=[[5] * 300] * 100, prompt_logprobs=20)
    yield bad(kind, CHAT, "messages", messages=[USER] * 10_000)
    yield bad(
        kind,
        CHAT,
        "messages",
        messages=[{"role": "user", "content": [{"type": "text", "text": "x"}] * 50_000}],
    )
    yield bad(kind, CHAT, "tools", tools=[TOOL] * 5000)
    yield bad(
        kind,
        CHAT,
        "messages",
        messages=[{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}] * 5000}],
    )
    yield bad(kind, EMBEDDINGS, "input", input=["x"] * 100_000)
    yield bad(kind, EMBEDDINGS, "dimensions", dimensions=10**9)
    yield bad(kind, EMBEDDINGS, "dimensions", dimensions=raw("1" * 4000))


def _ids(width: int) -> Iterator[Hostile]:
    """Ids that the logits do not have, at the edge and far beyond, wherever ids can be given."""
    kind = "ids"
    beyond = (
        width,
        width + 1,
        65_535,
        2**31 - 1,
        2**31,
        2**32 - 1,
        2**32,
        2**63 - 1,
        2**63,
        2**64,
        10**30,
        -1,
        -(2**31),
        -(2**63),
    )
    for id_ in beyond:
        for path in (CHAT, COMPLETION):
            yield bad(kind, path, "stop_token_ids", stop_token_ids=[5, id_])
            yield bad(kind, path, "allowed_token_ids", allowed_token_ids=[id_])
            yield bad(kind, path, "logit_bias", logit_bias={str(id_): 100})
        yield bad(kind, COMPLETION, "prompt", prompt=[5, id_])
        yield bad(kind, COMPLETION, "prompt", prompt=[[5], [5, id_]])
        yield bad(kind, COMPLETION, "prompt", prompt=[5, id_], echo=True, logprobs=1, max_tokens=1)
        yield bad(kind, EMBEDDINGS, "input", input=[id_])
        yield bad(kind, EMBEDDINGS, "input", input=[[id_], [5]])
        yield bad(kind, DETOKENIZE, "tokens", tokens=[id_])
    for wrong in (True, 5.5, "5", None, [5], {}):
        yield bad(kind, COMPLETION, "prompt", prompt=[5, wrong])
        yield bad(kind, DETOKENIZE, "tokens", tokens=[5, wrong])
        yield bad(kind, CHAT, "stop_token_ids", stop_token_ids=[wrong])
    yield bad(kind, COMPLETION, "logit_bias", logit_bias={"7": 1, "07": 2})


def _numbers() -> Iterator[Hostile]:
    """Numbers that are none, or too large for any type."""
    kind = "numbers"
    odd = [
        raw(text) for text in ("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "9" * 400, "-" + "9" * 100)
    ]
    no_json = [raw(text) for text in ("9" * 5000, "1e-400000000x", "--1", "0x10", "1_000", "+1")]
    names = (
        "temperature",
        "top_p",
        "min_p",
        "typical_p",
        "repetition_penalty",
        "n",
        "max_tokens",
        "seed",
        "deadline_ms",
    )
    for value in [*odd, "NaN", "1", *no_json]:
        for name in names:
            yield bad(kind, COMPLETION, None if value in no_json else name, **{name: value})
        yield bad(kind, CHAT, None if value in no_json else "logit_bias", logit_bias={"5": value})
    for name in ("temperature", "presence_penalty", "frequency_penalty"):
        yield bad(kind, COMPLETION, name, **{name: -1e300})
        yield bad(kind, COMPLETION, name, **{name: 1e300})
    yield bad(kind, COMPLETION, "repetition_penalty", repetition_penalty=0)
    yield bad(kind, COMPLETION, "repetition_penalty", repetition_penalty=5e-324)
    yield bad(kind, COMPLETION, "deadline_ms", deadline_ms=0)


def _prompts(context: int) -> Iterator[Hostile]:
    """Empty, too long, or no text."""
    kind = "prompts"
    for empty in ([], [[]], [""], [[5], []]):
        if empty != [""]:
            yield bad(kind, COMPLETION, "prompt", prompt=empty)
        yield bad(kind, EMBEDDINGS, "input", input=empty)
    yield bad(kind, COMPLETION, "prompt", prompt="", add_special_tokens=False)
    yield bad(kind, EMBEDDINGS, "input", input="")
    yield bad(kind, CHAT, "messages", messages=[])
    for path, name in ((COMPLETION, "prompt"), (EMBEDDINGS, "input")):
        yield bad(kind, path, name, **{name: [5] * (context + 1)})
        yield bad(kind, path, name, **{name: "word " * (2 * context)})
        yield bad(kind, path, name, **{name: "\U0001f600" * context})
        for text in ("\ud800", "x\udc00", "\udfff\ud800"):
            yield call(kind, path, {**VALID[path], name: text})
    yield bad(kind, COMPLETION, "max_tokens", max_tokens=context)
    yield bad(kind, CHAT, "messages", messages=[{"role": "user", "content": "word " * (2 * context)}])
    yield call(kind, TOKENIZE, {"messages": [USER], "prompt": "x"}, "prompt")
    yield call(kind, TOKENIZE, {}, "prompt")
    for salt in ("", 5, "x" * 2000, ["x"], {"a": 1}, True, 1.5):
        yield bad(kind, CHAT, "cache_salt", cache_salt=salt)
    yield bad(kind, COMPLETION, "model", model="no-such-model")
    yield bad(kind, COMPLETION, "model", model="../../etc/passwd")
    yield bad(kind, CHAT, None, model="\ud800")


def _templates() -> Iterator[Hostile]:
    """Templates in a request, URLs to be fetched, and parameters that would change the answer and are not supported."""
    kind = "templates and unsupported"
    bomb = "{% for a in range(10**9) %}{% for b in range(10**9) %}x{% endfor %}{% endfor %}"
    for source in (
        bomb,
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id') }}",
    ):
        yield bad(kind, CHAT, "chat_template", chat_template=source)
        yield call(kind, TOKENIZE, {"messages": [USER], "chat_template": source}, "chat_template")
        yield bad(kind, CHAT, "tools", tools=[{"type": "function", "function": {"name": source}}])
    for url in (
        "http://169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
        "data:image/png;base64,AAAA",
        "gopher://x",
    ):
        yield bad(
            kind,
            CHAT,
            "messages",
            messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}],
        )
    for name, value in {
        "lora_path": "/etc", "prompt_embeds": "gAR=", "kv_transfer_params": {"x": 1}, "functions": [{"name": "f"}],
        "guided_json": "{", "guided_regex": "(", "custom_logit_processor": "x", "logits_processors": ["os.system"],
        "extra_body": {"n": 1},
        "mm_processor_kwargs": {"a": 1}, "documents": [{"a": 1}], "vllm_xargs": {"a": 1},
        "use_beam_search": True, "tempreature": 1,
    }.items():  # fmt: skip
        yield bad(kind, CHAT, name if name != "tempreature" else None, **{name: value})


def _combined(context: int) -> Iterator[Hostile]:
    """Settings that contradict each other."""
    kind = "contradictions"
    yield bad(kind, CHAT, "top_logprobs", top_logprobs=2)
    yield bad(kind, CHAT, "stream_options", stream_options={"include_usage": True})
    yield bad(kind, CHAT, "tool_choice", tool_choice="required")
    yield bad(
        kind,
        CHAT,
        "tool_choice",
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "other"}},
    )
    yield bad(kind, CHAT, "continue_final_message", continue_final_message=True, add_generation_prompt=True)
    yield bad(kind, CHAT, "min_tokens", min_tokens=5)
    yield bad(kind, CHAT, "prompt_logprobs", prompt_logprobs=1, stream=True)
    yield bad(kind, COMPLETION, "best_of", best_of=2, stream=True)
    yield bad(kind, COMPLETION, "max_tokens", max_tokens=0)
    yield bad(kind, COMPLETION, "suffix", suffix="x")
    yield bad(kind, COMPLETION, "messages", messages=[USER])
    yield bad(kind, CHAT, "prompt", prompt="x")
    yield bad(kind, COMPLETION, "max_tokens", truncate_prompt_tokens=-1, max_tokens=context)
    yield bad(
        kind,
        COMPLETION,
        "include_stop_str_in_output",
        include_stop_str_in_output=True,
        structured_outputs={"regex": "a"},
    )
    yield bad(
        kind,
        CHAT,
        "structured_outputs",
        structured_outputs={"regex": "a"},
        response_format={"type": "json_object"},
    )
