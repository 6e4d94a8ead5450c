"""`cohort serve DIR`: a model directory of one's own, with random weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.e2e.checkpoints import CONFIG, write_model, write_tokenizer
from tests.e2e.server_process import ServerProcess
from tests.executors.checkpoints import write_checkpoint


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
        assert "model=my-model" in server.log() and "context_tokens=256" in server.log()
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


@pytest.mark.long
def test_a_body_alone_serves_embeddings(tmp_path: Path) -> None:
    """As base models are saved: no head, no beginning before the names, no architecture; and odd end tokens."""
    folder = tmp_path / "body"
    write_checkpoint(folder, {**CONFIG, "tie_word_embeddings": False})
    write_tokenizer(folder)
    tensors = load_file(folder / "model.safetensors")
    body = {name.removeprefix("model."): one for name, one in tensors.items() if name != "lm_head.weight"}
    save_file({**body, "score.weight": body["norm.weight"].clone()}, folder / "model.safetensors")
    fields = {
        **CONFIG,
        "tie_word_embeddings": False,
        "architectures": None,
        "eos_token_id": [None, 257, 10**6],
    }
    (folder / "config.json").write_text(json.dumps({**fields, "logits_scaling": 8.0}))
    (folder / "generation_config.json").write_text('{"eos_token_id": -1, "num_beams": 4}')
    args = [str(folder), "--max-model-len", "256", "--kv-cache-memory-bytes", "2MiB"]
    with ServerProcess(args, tmp_path) as server:
        vectors = server.post("/v1/embeddings", {"input": ["Hi", "Ho"]}).json()["data"]
        assert len(vectors) == 2 and len(vectors[0]["embedding"]) == CONFIG["hidden_size"]
        for path, body_of in (
            ("chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
            ("completions", {"prompt": "Hi", "stream": True}),
        ):
            refused = server.post(f"/v1/{path}", {"model": "body", **body_of})
            assert refused.status_code == 400
            assert "This model generates no tokens" in refused.json()["error"]["message"]
        assert server.get("/v1/models").json()["data"][0]["generates"] is False
        [executor] = server.get("/v1/executors").json()["data"]
        assert executor["info"]["generates"] is False
        notes = " ".join(executor["status"]["notes"])
        assert "logits_scaling 8.0" in notes and "score.weight is not used" in notes and "no lm_head" in notes
        log = server.log()
    assert "embeddings only" in log
    for words in ("eos_token_id: -1 not used", "eos_token_id: null, 1000000 not used", "not used: num_beams"):
        assert log.count(words) == 1, log
