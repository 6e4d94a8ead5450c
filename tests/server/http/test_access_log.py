"""The line of each request in the log: nothing a client sends can break out of it, and both ids of an answer are there."""

import pytest

from tests.server.fakes import House, events


async def test_paths_stay_on_their_line(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    async with house.client() as client:
        await client.get("/%0A2026-01-01%20[info]%20forged%1b[31m%c2%9b/\xe9")
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 1
    assert "/%0A2026-01-01%20[info]%20forged%1b" in out.lower().replace("%0a", "%0A")
    assert out.removesuffix("\n").isprintable()


async def test_methods_and_decoded_paths_too(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GE\nT", "path": "/a\n\x1b[31m\x9b",
        "query_string": b"", "headers": [], "scheme": "http", "root_path": "", "server": None, "client": None,
    }  # fmt: skip

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: object) -> None:
        pass

    await house.app(scope, receive, send)  # type: ignore[arg-type]
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 1
    assert out.removesuffix("\n").isprintable()


@pytest.mark.parametrize("stream", [False, True])
async def test_both_ids_of_an_answer(house: House, capsys: pytest.CaptureFixture[str], stream: bool) -> None:
    responses = (await house.chat(stream=stream), await house.complete(stream=stream))
    lines = capsys.readouterr().out.splitlines()
    for response in responses:
        answer = events(response)[0] if stream else response.text
        [line] = [one for one in lines if response.headers["x-request-id"] in one]
        _, found, rest = line.partition("response_id=")
        assert found
        assert f'"{rest.split()[0]}"' in answer
