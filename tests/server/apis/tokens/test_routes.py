"""POST /tokenize and /detokenize, in vLLM's shape."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import processors

from engine.text.tokenizer import Tokenizer
from server.templates.template import ChatTemplate
from tests.engine.text.kinds import trained
from tests.server.fakes import BOS, TEMPLATE, House, error_of


async def test_text(house: House) -> None:
    answer = (await house.post("/tokenize", {"model": "fake", "prompt": "Hi"})).json()
    assert answer == {"count": 3, "max_model_len": 512, "tokens": [BOS, 72, 105], "token_strs": None}
    body = {"prompt": "Hi", "add_special_tokens": False, "return_token_strs": True}
    answer = (await house.post("/tokenize", body)).json()
    assert (answer["tokens"], answer["token_strs"]) == ([72, 105], ["H", "i"])
    assert (await house.post("/tokenize", {"prompt": ""})).json()["count"] == 1


async def test_chat(house: House) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": False}
    answer = (await house.post("/tokenize", body)).json()
    assert bytes(answer["tokens"]).decode() == "<s>[user:Hi]"


async def test_going_on_with_the_last_message(house: House) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}]
    body: dict[str, Any] = {"messages": messages, "continue_final_message": True}
    for given in ({}, {"add_generation_prompt": False}):
        answer = (await house.post("/tokenize", body | given)).json()
        assert bytes(answer["tokens"]).decode() == "<s>[user:Hi][assistant:Well"
    response = await house.post("/tokenize", body | {"add_generation_prompt": True})
    assert response.status_code == 400
    assert error_of(response)["param"] == "continue_final_message"


async def test_detokenize(house: House) -> None:
    answer = (await house.post("/detokenize", {"tokens": [BOS, 72, 105]})).json()
    assert answer == {"prompt": "<s>Hi"}
    assert (await house.post("/detokenize", {"tokens": []})).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/tokenize", {"prompt": "a", "add_special_token": False}, "add_special_token"),
        ("/tokenize", {"prompt": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("/tokenize", {"prompt": "a", "truncate_prompt_tokens": 513}, "truncate_prompt_tokens"),
        ("/tokenize", {"prompt": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ("/tokenize", {"prompt": "a", "truncation_side": "middle"}, "truncation_side"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "a"}], "chat_template": "x"},
            "chat_template",
        ),
        ("/detokenize", {"tokens": [65], "skip_special_token": True}, "skip_special_token"),
        ("/detokenize", {"tokens": "1"}, "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens.1"),
        ("/detokenize", {"tokens": [320]}, "tokens"),
    ],
)
async def test_bad_input(house: House, path: str, body: dict[str, Any], param: str) -> None:
    response = await house.post(path, body)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


async def test_keys_that_change_no_ids_are_ignored(house: House) -> None:
    further = {
        "temperature": 0,
        "user": "me",
        "chat_template": None,
        "response_format": {"type": "json_object"},
    }
    assert (await house.post("/tokenize", {"prompt": "a", **further})).json()["tokens"] == [BOS, 97]


async def test_large_lists_are_decoded_on_a_thread(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    assert house.state.model is not None
    tokenizer, threads = type(house.state.model.tokenizer), set()
    decode = tokenizer.decode

    def spy(self: Any, *args: Any) -> str:
        threads.add(threading.current_thread())
        return decode(self, *args)

    monkeypatch.setattr(tokenizer, "decode", spy)
    assert (await house.post("/detokenize", {"tokens": [65] * 2000})).json() == {"prompt": "A" * 2000}
    await house.post("/tokenize", {"prompt": "x" * 2000, "return_token_strs": True})
    assert threads
    assert threading.main_thread() not in threads


async def test_an_echo_that_cannot_fit_is_not_decoded(house: House) -> None:
    assert house.state.model is not None
    house.state.model.tokenizer.decode = None  # type: ignore[method-assign,assignment]
    response = await house.complete(prompt=[65] * 512, echo=True)
    assert response.status_code == 400
    assert error_of(response)["code"] == "context_length_exceeded"


async def test_contents_of_either_form_reach_a_template_that_reads_parts() -> None:
    house = House(
        template="{% for m in messages %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endfor %}"
    )
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    for content, expected in (("Hi", "(Hi)"), (parts, "(a)(b)")):
        body = {"messages": [{"role": "user", "content": content}]}
        answer = (await house.post("/tokenize", body)).json()
        assert bytes(answer["tokens"]).decode() == expected


async def test_documents_are_for_the_template() -> None:
    house = House(template="{% for d in documents or [] %}{{ d.text }}{% endfor %}{{ messages[0].content }}")
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    good = body | {"chat_template_kwargs": {"documents": [{"text": "x"}]}}
    assert bytes((await house.post("/tokenize", good)).json()["tokens"]).decode() == "xHi"
    bad = await house.post("/tokenize", body | {"chat_template_kwargs": {"documents": "x"}})
    assert (bad.status_code, error_of(bad)["param"]) == (400, "chat_template_kwargs.documents")


async def test_tools_that_the_template_does_not_show_are_refused() -> None:
    house = House(template="{{ messages[0].content }}")
    tool = {"type": "function", "function": {"name": "f"}}
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
    for path in ("/tokenize", "/v1/chat/completions"):
        response = await house.post(path, body | {"tools": [tool]})
        assert response.status_code == 400
        assert error_of(response)["param"] == "tools"
        assert error_of(response)["code"] == "unsupported_parameter"
    assert (await house.post("/tokenize", body | {"tools": []})).status_code == 200
    assert (await house.chat(**body, tools=[tool], tool_choice="none")).status_code == 200
    shown = await House().post("/tokenize", body | {"tools": [tool]})
    assert '"name": "f"' in bytes(shown.json()["tokens"]).decode()


async def test_one_bos_whoever_writes_it(tmp_path: Path) -> None:
    raw = RawTokenizer.from_str(trained("sp_bpe_first"))
    bos = raw.token_to_id("<|user|>")
    raw.post_processor = processors.TemplateProcessing(
        single="<|user|> $A", pair="<|user|> $A $B", special_tokens=[("<|user|>", bos)]
    )
    raw.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<|user|>", "add_bos_token": true}')
    tokenizer = Tokenizer.load(tmp_path)
    house = House()
    assert house.state.model is not None
    template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}", tokenizer.special_tokens)
    house.state.model = replace(house.state.model, tokenizer=tokenizer, template=template)
    messages = [{"role": "user", "content": "fox"}]
    for body, count in (
        ({"messages": messages}, 1),
        ({"messages": messages, "add_special_tokens": True}, 2),  # asked for, as with vLLM
        ({"prompt": "fox"}, 1),
        ({"prompt": "fox", "add_special_tokens": False}, 0),
    ):
        tokens = (await house.post("/tokenize", body)).json()["tokens"]
        assert tokens.count(bos) == count
        assert tokens[count:] == tokenizer.encode("fox", False) or "messages" in body


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompt": "abcd", "truncate_prompt_tokens": 2}, [BOS, 100]),
        ({"prompt": "abcd", "truncate_prompt_tokens": 2, "truncation_side": "right"}, [BOS, 97]),
        ({"prompt": "abcd", "truncate_prompt_tokens": 2, "add_special_tokens": False}, [99, 100]),
        ({"prompt": "x" * 600, "truncate_prompt_tokens": -1}, [BOS, *b"x" * 511]),
        ({"messages": [{"role": "user", "content": "Hi"}], "truncate_prompt_tokens": 3}, [*b"nt:"]),
    ],
)
async def test_truncation(house: House, body: dict[str, Any], expected: list[int]) -> None:
    answer = (await house.post("/tokenize", body)).json()
    assert answer["tokens"] == expected
    assert answer["count"] == len(expected)


async def test_a_text_may_be_longer_than_the_context_or_empty(house: House) -> None:
    assert (await house.post("/tokenize", {"prompt": "x" * 3000})).json()["count"] == 3001
    # What no context of this length could hold is not tokenized, unless it is to be cut.
    for body in ({"prompt": "x" * 200_000}, {"messages": [{"role": "user", "content": "x" * 200_000}]}):
        assert (await house.post("/tokenize", body)).status_code == 400
        cut = await house.post("/tokenize", {**body, "truncate_prompt_tokens": 9})
        assert cut.json()["count"] == 9
    answer = await house.post("/tokenize", {"prompt": "", "add_special_tokens": False})
    assert answer.json()["tokens"] == []


async def test_tokenizer_info_over_fakes(house: House) -> None:
    info = (await house.get("/tokenizer_info")).json()
    assert info["chat_template"] == TEMPLATE
    assert {name: info[name] for name in ("bos_token", "eos_token", "unk_token", "pad_token")} == {
        "bos_token": "<s>",
        "eos_token": None,
        "unk_token": None,
        "pad_token": None,
    }
    assert info["tokenizer_class"] == "ByteTokenizer"
    assert info["model_max_length"] == 512
    assert info["added_tokens_decoder"] == {"256": "<s>"}
    assert "name_or_path" not in info, "a path is nobody's business"
    house.state.model = None
    assert (await house.get("/tokenizer_info")).status_code == 503


async def test_tokenizer_info_of_a_real_tokenizer(tmp_path: Path) -> None:
    raw = RawTokenizer.from_str(trained("sp_bpe_first"))
    raw.save(str(tmp_path / "tokenizer.json"))
    config = {
        "eos_token": {"__type": "AddedToken", "content": "<|user|>", "special": True},
        "extra_special_tokens": [{"content": "<|a|>", "special": True}, "<|b|>"],
        "model_max_length": 10**30,
        "added_tokens_decoder": {},
        "chat_template": [
            {"name": "default", "template": "{{ 1 }}"},
            {"name": "tool_use", "template": "{{ 2 }}"},
        ],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.load(tmp_path)
    house = House()
    assert house.state.model is not None and tokenizer.chat_template is not None
    template = ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens)
    house.state.model = replace(house.state.model, tokenizer=tokenizer, template=template)
    info = (await house.get("/tokenizer_info")).json()
    assert (info["eos_token"], info["bos_token"]) == ("<|user|>", None)
    assert info["extra_special_tokens"] == ["<|a|>", "<|b|>"]
    assert info["chat_template"] == "{{ 1 }}"
    assert info["model_max_length"] == 512
    assert info["added_tokens_decoder"][str(tokenizer.added_tokens["<|a|>"])] == "<|a|>"
    # What is read from it works: the end token's text is one token.
    asked = {"prompt": info["eos_token"], "add_special_tokens": False}
    ids = (await house.post("/tokenize", asked)).json()["tokens"]
    assert [info["added_tokens_decoder"][str(id_)] for id_ in ids] == [info["eos_token"]]
