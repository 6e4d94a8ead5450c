"""A model without a chat template: the server says so once at its start, with the cure that its 400 has."""

from dataclasses import replace

import pytest

from executors.contract import KvLayout
from server.startup import banner
from tests.server.fakes import INFO, House, error_of

LACK = "This model has no chat template: use /v1/completions, or start the server with --chat-template."


def facts(**more: object) -> banner.Facts:
    plain = banner.Facts(
        url="http://x", name="base", info=INFO, layout=KvLayout.of(16, 32, 1), weight_bytes=0, max_model_len=512, needs_key=False,
    )  # fmt: skip
    return replace(plain, **more)  # type: ignore[arg-type]


def test_the_terminal_shows_it_and_a_command_that_works() -> None:
    text = facts(template_lack=LACK).text()
    assert f"  chat      {LACK}" in text.splitlines()
    assert "http://x/v1/completions" in text.splitlines()[-1] and '"prompt"' in text.splitlines()[-1]
    assert "  chat " not in facts().text()
    assert "/v1/chat/completions" in facts().text().splitlines()[-1]


def test_the_log_has_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    class Log:
        def info(self, event: str, **_: object) -> None:
            """The line of all servers."""

        def warning(self, event: str, **_: object) -> None:
            lines.append(event)

    monkeypatch.setattr(banner, "log", Log())
    facts(template_lack=LACK).log()
    assert lines == [LACK]
    facts().log()
    assert lines == [LACK]


@pytest.mark.parametrize(
    "more", [{"info": replace(INFO, generates=False)}, {"scores": "reranker"}, {"scores": "embedding"}]
)
def test_models_that_chat_with_no_template_say_nothing(more: dict[str, object]) -> None:
    assert "chat-template" not in facts(template_lack=LACK, **more).text()


async def test_the_line_is_the_answer_of_a_chat() -> None:
    house = House(template=None)
    response = await house.chat()
    assert response.status_code == 400
    assert house.state.model is not None
    assert error_of(response)["message"] == house.state.model.template_lack == LACK
