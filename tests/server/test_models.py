"""GET /v1/models and /v1/models/{id}."""

from tests.server.fakes import House, error_of


async def test_list(house: House) -> None:
    answer = (await house.get("/v1/models")).json()
    assert answer["object"] == "list"
    assert [card["id"] for card in answer["data"]] == ["fake", "org/fake-1"]
    for card in answer["data"]:
        assert (card["object"], card["owned_by"], card["max_model_len"]) == ("model", "cohort", 512)
        assert isinstance(card["created"], int)


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
