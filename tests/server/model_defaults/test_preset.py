"""What a packaged model brings reaches every API, and what a request says counts before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from server.model_defaults.ollama_params import read_params
from server.model_defaults.preset import Preset
from server.model_defaults.sampling import SamplingDefaults
from server.model_files.ollama_package import Package
from tests.server.api_schema import check_answer
from tests.server.fakes import BOS, House, error_of

PIRATE = Preset(
    system="Arr.", stop=("<|x|>",), seed=7, max_tokens=3, licenses=("MIT",), adapter="sha256-aa", context=64
)
SHOTS = replace(PIRATE, messages=({"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}))
HI = [{"role": "user", "content": "Hi"}]
OWN = [{"role": "system", "content": "Own."}, *HI]


def packaged(preset: Preset, **how: Any) -> House:
    house = House(**how)
    assert house.state.model is not None
    house.state.model = replace(house.state.model, preset=preset)
    return house


async def prompt(house: House, path: str, **body: Any) -> str:
    answer = await house.post(path, {"model": "fake", **body})
    assert answer.status_code == 200, answer.text
    return "".join(chr(one) for one in house.engine.requests[-1].prompts[0] if one < BOS).removeprefix("<s>")


CHATS = [
    ("/v1/chat/completions", "messages", {}),
    ("/v1/messages", "messages", {"max_tokens": 5}),
    ("/v1/responses", "input", {}),
    ("/api/chat", "messages", {"stream": False}),
]


@pytest.mark.parametrize(("path", "field", "more"), CHATS)
async def test_the_system_text_is_before_a_chat_without_one(
    path: str, field: str, more: dict[str, Any]
) -> None:
    house = packaged(PIRATE)
    assert (await prompt(house, path, **{field: HI}, **more)).startswith("[system:Arr.][user:Hi]")
    own = {"system": "Own.", "messages": HI} if path == "/v1/messages" else {field: OWN}
    assert (await prompt(house, path, **own, **more)).startswith("[system:Own.][user:Hi]")


@pytest.mark.parametrize(("path", "field", "more"), CHATS)
async def test_packaged_messages_are_before_each_chat(path: str, field: str, more: dict[str, Any]) -> None:
    house = packaged(SHOTS)
    shots = "[user:A][assistant:B]"
    assert (await prompt(house, path, **{field: HI}, **more)).startswith(f"[system:Arr.]{shots}[user:Hi]")
    own = {"system": "Own.", "messages": HI} if path == "/v1/messages" else {field: OWN}
    assert (await prompt(house, path, **own, **more)).startswith(f"[system:Own.]{shots}[user:Hi]")


async def test_prompts_of_generate_but_no_raw_texts() -> None:
    house = packaged(SHOTS)
    more = {"prompt": "Hi", "stream": False}
    assert (await prompt(house, "/api/generate", **more)).startswith(
        "[system:Arr.][user:A][assistant:B][user:Hi]"
    )
    assert (await prompt(house, "/api/generate", system="Own.", **more)).startswith("[system:Own.][user:A]")
    assert await prompt(house, "/api/generate", raw=True, **more) == "Hi"
    assert await prompt(house, "/v1/completions", prompt="Hi") == "Hi"


async def test_what_tokenizers_see() -> None:
    house = packaged(PIRATE)
    answer = await house.post("/tokenize", {"model": "fake", "messages": HI})
    text = "".join(chr(one) for one in answer.json()["tokens"] if one < BOS).removeprefix("<s>")
    assert text.startswith("[system:Arr.][user:Hi]")


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/api/chat", "/api/generate", "raw"]
)
async def test_defaults_of_requests_that_say_nothing(path: str) -> None:
    house = packaged(PIRATE, defaults=SamplingDefaults(presence_penalty=0.5))
    raw = {"raw": True} if path == "raw" else {}
    path = "/api/generate" if raw else path
    chat = path.endswith(("chat/completions", "/chat"))
    body = {"messages": HI} if chat else {"prompt": "Hi", **raw}
    stream = {"stream": False} if path.startswith("/api") else {}
    await prompt(house, path, **body, **stream)
    asked = house.engine.requests[-1]
    assert (asked.stop, asked.seed, asked.default_tokens, asked.max_tokens) == (("<|x|>",), 7, 3, None)
    assert asked.sampling.presence_penalty == 0.5
    given: dict[str, Any] = {"stop": ["own"], "seed": 8, "presence_penalty": 0.0}
    of_ollama = {"options": {**given, "num_predict": 4}}
    await prompt(house, path, **body, **stream, **(of_ollama if stream else {**given, "max_tokens": 4}))
    asked = house.engine.requests[-1]
    assert (asked.stop, asked.seed, asked.max_tokens) == (("own",), 8, 4)
    assert asked.sampling.presence_penalty == 0.0
    given = {"stop": [], "seed": -1}
    await prompt(house, path, **body, **stream, **({"options": given} if stream else given))
    assert house.engine.requests[-1].seed is None


async def test_a_stop_string_that_is_a_special_token_ends_the_answer() -> None:
    """The text of an answer never has it: Ollama's models name such tokens, which the GGUF file may not list as its ends."""
    house = packaged(replace(PIRATE, stop_token_ids=(BOS, 10**6)))
    await prompt(house, "/v1/completions", prompt="Hi")
    assert house.engine.requests[-1].stop_token_ids == (BOS,)
    await prompt(house, "/v1/completions", prompt="Hi", stop_token_ids=[7])
    assert house.engine.requests[-1].stop_token_ids == (7, BOS)
    await prompt(house, "/v1/completions", prompt="Hi", stop=["own"])
    assert house.engine.requests[-1].stop_token_ids == ()


def test_which_stop_strings_are_special_tokens() -> None:
    package = Package("pirate", params={"stop": ["<|eot|>", "User:"]})
    preset = Preset.of(package, read_params(package), {"<|eot|>": 9, "<|other|>": 8})
    assert (preset.stop, preset.stop_token_ids) == (("<|eot|>", "User:"), (9,))
    assert Preset.of(package, None, {"<|eot|>": 9}).stop_token_ids == ()


async def test_what_show_says() -> None:
    house = packaged(SHOTS, defaults=SamplingDefaults(temperature=0.1))
    answer = await house.post("/api/show", {"model": "fake:latest"})
    check_answer(answer)
    shown = answer.json()
    assert {"temperature 0.1", "seed 7", "num_predict 3", 'stop "<|x|>"'} <= set(
        shown["parameters"].splitlines()
    )
    assert any(line.startswith("num_ctx ") for line in shown["parameters"].splitlines())
    assert (shown["system"], shown["license"], shown["adapter"]) == ("Arr.", "MIT", "sha256-aa")
    assert shown["messages"] == list(SHOTS.messages)
    for line in (
        "ADAPTER sha256-aa",
        'SYSTEM """Arr."""',
        'MESSAGE user """A"""',
        'PARAMETER stop "<|x|>"',
        'LICENSE """MIT"""',
    ):
        assert line in shown["modelfile"].splitlines(), line
    plain = (await House().post("/api/show", {"model": "fake"})).json()
    assert not {"system", "messages", "license", "adapter"} & plain.keys()


async def test_a_template_in_gos_language_alone() -> None:
    house = packaged(Preset(template="{{ .Prompt }}"), template=None)
    answer = await house.chat()
    assert answer.status_code == 400 and "Go's language" in error_of(answer)["message"]
    assert "--chat-template" in error_of(answer)["message"]
    shown = (await house.post("/api/show", {"model": "fake"})).json()
    assert shown["template"] == "{{ .Prompt }}" and 'TEMPLATE """{{ .Prompt }}"""' in shown["modelfile"]
    assert (await house.complete()).status_code == 200
