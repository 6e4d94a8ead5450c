"""`cohort serve DIR`: a model directory of one's own, with random weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.checkpoints import write_model, write_tokenizer
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.e2e


def test_own_model(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    write_model(folder)
    write_tokenizer(folder, template=None)
    template = tmp_path / "mine.jinja"
    template.write_text("{{ messages[0].content }}")
    args = [
        str(folder),
        "--load-format",
        "dummy",
        "--max-model-len",
        "256",
        "--kv-cache-memory-bytes",
        "2MiB",
    ]
    with ServerProcess([*args, "--chat-template", str(template), "--seed", "3"], tmp_path) as server:
        assert "my-model" in server.output()
        assert "context   256 tokens" in server.output()
        [card] = server.get("/v1/models").json()["data"]
        assert (card["id"], card["max_model_len"]) == ("my-model", 256)
        messages = [{"role": "user", "content": "Hi"}]
        assert server.post("/tokenize", {"messages": messages}).json()["count"] == 2
        body = {"messages": messages, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        answer = server.post("/v1/chat/completions", body).json()
        assert answer["model"] == "my-model"
        assert answer["usage"]["completion_tokens"] == 8
        again = server.post("/v1/chat/completions", body).json()
        assert again["choices"] == answer["choices"]
        tokens = server.post("/tokenize", {"prompt": "Grüße"}).json()["tokens"]
        assert server.post("/detokenize", {"tokens": tokens}).json() == {"prompt": "Grüße"}
