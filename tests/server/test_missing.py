"""What docs/not-supported.md lists as missing is refused or absent. A feature that arrives makes its test here fail: its row in
`tools/missing_docs.py` goes with the test."""

from pathlib import Path

import pytest

from server.apis.description import OPERATIONS
from server.settings.foreign.command_line import read_flags
from server.settings.table import TABLE
from tests.server.fakes import House, error_of
from tools import missing_docs

OPTIONS = {row.flag: not row.is_switch for row in TABLE.values()}


def refusal(line: str) -> str:
    return read_flags(line.split(), OPTIONS).complaint or ""


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("image_url", {"image_url": {"url": "data:image/png;base64,AA=="}}),
        ("input_audio", {"input_audio": {"data": "AA==", "format": "wav"}}),
        ("video_url", {"video_url": {"url": "data:video/mp4;base64,AA=="}}),
    ],
)
async def test_images_audio_and_video(house: House, kind: str, part: dict[str, object]) -> None:
    response = await house.chat(messages=[{"role": "user", "content": [{"type": kind, **part}]}])
    assert response.status_code == 400
    assert f"'{kind}' are not supported" in error_of(response)["message"]


async def test_training(house: House) -> None:
    response = await house.post("/v1/fine_tuning/jobs", {"model": "fake", "training_file": "file-1"})
    assert response.status_code == 404 and "does not serve training" in error_of(response)["message"]


def test_one_model_over_machines() -> None:
    assert "several machines" in refusal("--nnodes 2") and "several machines" in refusal(
        "--master-addr 10.0.0.1"
    )
    assert "this machine" in refusal("--rpc 10.0.0.2:50052")
    assert not {"nnodes", "node_rank", "master_addr", "rpc"} & set(TABLE)


def test_offload() -> None:
    for line in ("--cpu-offload-gb 4", "--kv-offloading-size 4", "--n-cpu-moe 8", "--no-kv-offload"):
        assert "stay on the device" in refusal(line)
    assert not any("offload" in name for name in TABLE)


async def test_change_without_restart(house: House) -> None:
    assert {operation.method for operation in OPERATIONS if operation.path == "/v1/settings"} == {"get"}
    for method, path in (("post", "/v1/settings"), ("put", "/v1/settings"), ("patch", "/v1/settings")):
        async with house.client() as client:
            assert (await client.request(method, path, json={})).status_code in (404, 405)


def test_the_list_is_current(tmp_path: Path) -> None:
    assert missing_docs.main(["check"]) == 0


def test_a_row_without_its_test_is_a_complaint(tmp_path: Path) -> None:
    assert len(list(missing_docs.problems(tmp_path))) == len(missing_docs.ROWS)
    page = missing_docs.PAGE.read_text("utf-8")
    for gone in ("Several front-end processes", "replicas, and"):
        assert gone not in page


def test_the_rows_are_tests_of_their_own() -> None:
    assert len({row.shown_by for row in missing_docs.ROWS}) == len(missing_docs.ROWS)
