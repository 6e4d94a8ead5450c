"""GET /v1/models and /v1/models/{id}."""

from dataclasses import replace

import pytest

from server.model_defaults.sampling import SamplingDefaults
from tests.server.fakes import House, error_of


async def test_list(house: House) -> None:
    answer = (await house.get("/v1/models")).json()
    assert answer["object"] == "list"
    assert [card["id"] for card in answer["data"]] == ["fake", "org/fake-1"]
    for card in answer["data"]:
        assert (card["object"], card["owned_by"], card["max_model_len"]) == ("model", "cohort", 512)
        assert isinstance(card["created"], int)


async def test_capabilities_in_mistrals_words() -> None:
    """Its SDK reads no card without `type` and `capabilities`."""
    silent = House(template="{% for m in messages %}{{ m.content }}{% endfor %}")
    for house, calls in ((House(), True), (silent, False)):
        card = (await house.get("/v1/models/fake")).json()
        assert card["type"] == "base"
        assert card["capabilities"] == {
            "completion_chat": True,
            "function_calling": calls,
            "reasoning": False,
        }
        house.state.model = None
        card = (await house.get("/v1/models/fake")).json()
        assert not any(card["capabilities"].values())


async def test_one_by_id_with_a_slash(house: House) -> None:
    assert (await house.get("/v1/models/fake")).json()["id"] == "fake"
    assert (await house.get("/v1/models/org/fake-1")).json()["id"] == "org/fake-1"
    assert (await house.get("/v1/models/org%2Ffake-1")).json()["id"] == "org/fake-1"


async def test_unknown(house: House) -> None:
    response = await house.get("/v1/models/org/other")
    assert response.status_code == 404
    assert error_of(response)["code"] == "model_not_found"


async def test_names_are_there_while_loading(house: House) -> None:
    house.state.model = None
    assert [card["id"] for card in (await house.get("/v1/models")).json()["data"]] == ["fake", "org/fake-1"]


async def test_a_model_that_generates_nothing(house: House) -> None:
    """It has no head: it makes embeddings, and the card says so."""
    served = house.state.model
    assert served is not None
    assert (await house.get("/v1/models/fake")).json()["generates"] is True
    house.state.model = replace(served, template=None, info=replace(served.info, generates=False))
    card = (await house.get("/v1/models/fake")).json()
    assert card["generates"] is False
    assert not any(card["capabilities"].values())
    for response in (await house.chat(), await house.chat(stream=True), await house.complete()):
        assert response.status_code == 400
        error = error_of(response)
        assert (error["param"], error["code"]) == ("model", "unsupported_value")
        assert error["message"].startswith("This model generates no tokens: its checkpoint has no lm_head.")
    assert (await house.post("/v1/embeddings", {"model": "fake", "input": "Hi"})).status_code == 200
    assert (await house.post("/tokenize", {"model": "fake", "prompt": "Hi"})).status_code == 200


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ({}, {}),
        ({"temperature": 0.2, "top_k": 50, "eos_token_id": 2}, {"temperature": 0.2, "top_k": 50}),
        ({"temperature": 1.0, "min_p": None}, {"temperature": 1.0}),
        ({"do_sample": False, "temperature": 0.7}, {"temperature": 0.0}),
    ],
)
async def test_sampling_defaults(file: dict[str, object], shown: dict[str, float]) -> None:
    """What the model's files set is told, also where it is what OpenAI's defaults are; what they leave open is not."""
    house = House(defaults=SamplingDefaults.of(file))
    for path in ("/v1/models/fake", "/v1/models/org/fake-1"):
        assert (await house.get(path)).json()["sampling_defaults"] == shown
    house.state.model = None
    assert (await house.get("/v1/models/fake")).json()["sampling_defaults"] is None
