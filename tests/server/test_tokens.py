"""POST /tokenize and /detokenize, in vLLM's shape."""

import threading
from typing import Any

import pytest

from tests.server.fakes import BOS, House, error_of


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
        ("/detokenize", {"tokens": "1"}, "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens.1"),
        ("/detokenize", {"tokens": [320]}, "tokens"),
    ],
)
async def test_bad_input(house: House, path: str, body: dict[str, Any], param: str) -> None:
    response = await house.post(path, body)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


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
