"""/live, /ready, /health, /version: what each says in each stage."""

import pytest

from engine.request import Stage
from server import __version__
from server.state.server_state import ServerState
from tests.server.fakes import FakeCore, House, error_of


@pytest.mark.parametrize(
    ("stage", "ready", "health"),
    [
        (Stage.LOADING, 503, 503),
        (Stage.READY, 200, 200),
        (Stage.RECOVERING, 503, 200),
        (Stage.DRAINING, 503, 200),
        (Stage.FAILED, 503, 503),
        (Stage.STOPPED, 503, 503),
    ],
)
async def test_stages(stage: Stage, ready: int, health: int) -> None:
    house = House(core=FakeCore(stage, "why"))
    assert (await house.get("/live")).status_code == 200
    for path, status in (("/ready", ready), ("/health", health)):
        response = await house.get(path)
        assert response.status_code == status
        assert response.json() == {"status": stage.value, "detail": "why"}
        assert ("retry-after" in response.headers) == (status == 503)
        async with house.client() as client:
            assert (await client.head(path)).status_code == status


async def test_a_recovery_that_takes_too_long_is_unhealthy(house: House) -> None:
    now = 100.0
    house.state.clock = lambda: now
    house.state.recovery_timeout = 120.0
    house.core.stage = Stage.RECOVERING
    assert (await house.get("/health")).status_code == 200
    now += 119
    assert (await house.get("/health")).status_code == 200
    now += 2
    assert (await house.get("/health")).status_code == 503
    assert (await house.get("/live")).status_code == 200
    house.core.stage = Stage.READY
    assert (await house.get("/health")).status_code == 200
    house.core.stage = Stage.RECOVERING
    assert (await house.get("/health")).status_code == 200, "a new recovery has its own time"


async def test_loading_until_the_model_is_there(house: House) -> None:
    model, house.state.model = house.state.model, None
    assert (await house.get("/health")).json() == {"status": "loading"}
    response = await house.chat()
    assert response.status_code == 503
    assert error_of(response)["code"] == "service_unavailable"
    assert int(response.headers["retry-after"]) > 0
    house.state.core = None
    assert (await house.get("/ready")).status_code == 503
    house.state.model, house.state.core = model, house.core
    assert (await house.get("/ready")).status_code == 200


async def test_draining_is_said_as_soon_as_it_begins(house: House) -> None:
    house.state.draining = True
    assert (await house.get("/ready")).status_code == 503
    assert (await house.get("/health")).json() == {"status": "draining"}


async def test_version(house: House) -> None:
    assert (await house.get("/version")).json() == {"version": __version__}


async def test_state_before_there_is_an_engine() -> None:
    state = ServerState(("x",), House().state.metrics)
    assert state.stage() == (Stage.LOADING, "")
    assert state.recovering_for() == 0.0


async def test_no_created_series(house: House) -> None:
    assert "_created" not in (await house.get("/metrics")).text
