"""Texts that are far too long are not tokenized as a whole: it takes hundreds of bytes a token, and nothing can stop it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from engine.errors import ContextLengthExceeded
from server.prepare import chat_prompt as prompts
from server.prepare.chat_prompt import encode_text
from tests.server.fakes import House, error_of


@pytest.fixture
def pieces(house: House, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the texts that are tokenized."""
    seen: list[int] = []
    kind: Any = type(cast(Any, house.state.model).tokenizer)
    real = kind.encode

    def encode(self: Any, text: str, add_special_tokens: bool = True) -> list[int]:
        seen.append(len(text))
        ids: list[int] = real(self, text, add_special_tokens)
        return ids

    monkeypatch.setattr(kind, "encode", encode)
    return seen


def test_the_first_pieces_tell(house: House, pieces: list[int]) -> None:
    model: Any = replace(cast(Any, house.state.model), max_model_len=100_000)
    with pytest.raises(ContextLengthExceeded, match="10000000 characters"):
        encode_text(model, "word " * 2_000_000, False, "prompt")
    assert max(pieces) <= prompts.PIECE
    assert sum(pieces) < 500_000


def test_what_only_looks_too_long_is_tokenized(
    house: House, pieces: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "PIECE", 100)
    model: Any = house.state.model
    monkeypatch.setattr(prompts, "PLAUSIBLE_CHARACTERS_PER_TOKEN", 1)
    for length in (300, 600, 1000):
        ids = encode_text(model, "a" * length, False, "prompt")
        assert ids == model.tokenizer.encode("a" * length, False), (
            "the engine says by how much it is too long"
        )
    with pytest.raises(ContextLengthExceeded):
        encode_text(model, "a" * 3000, False, "prompt")
    assert max(pieces) == 1000


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize"])
async def test_what_is_to_be_truncated_is_bounded_too(house: House, pieces: list[int], path: str) -> None:
    async def ask(text: str) -> Any:
        body: dict[str, Any] = {"truncate_prompt_tokens": 5}
        if path == "/v1/embeddings":
            body["input"] = text
        elif path == "/v1/chat/completions":
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = text
        return await house.post(path, body)

    assert (await ask("long " * 100_000)).status_code == 200
    pieces.clear()
    answer = await ask("long " * 400_000)
    assert answer.status_code == 400, answer.text
    assert error_of(answer)["code"] == "context_length_exceeded"
    assert "at most 1048576 are read" in error_of(answer)["message"]
    assert not pieces or max(pieces) < 1000
