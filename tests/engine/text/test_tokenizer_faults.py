"""Every fault in a checkpoint's tokenizer files is one line that names the file or field."""

from __future__ import annotations

from pathlib import Path

import pytest

from executors.contract import ConfigError
from tests.engine.tokenizers_for_tests import byte_level, load


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("config.json", b'{"eos_token_id": [[1]]}', "eos_token_id"),
        ("config.json", b'{"eos_token_id": true}', "eos_token_id"),
        ("config.json", b'{"eos_token_id": "x"}', "eos_token_id"),
        ("config.json", b"[]", "config.json"),
        ("generation_config.json", b'{"eos_token_id": [1.0]}', "eos_token_id"),
        ("generation_config.json", b"{", "generation_config.json"),
        ("chat_template.jinja", b"\xff\xfe", "chat_template.jinja"),
    ],
)
def test_faults(tmp_path: Path, file: str, content: bytes, says: str) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        load(byte_level(), tmp_path)
    assert says in str(raised.value) and "\n" not in str(raised.value)


def test_no_tokenizer_and_a_broken_one(tmp_path: Path) -> None:
    from engine.text.tokenizer import Tokenizer

    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_a_text_config_of_the_wrong_kind_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"text_config": "x"}')
    assert load(byte_level(), tmp_path).eos_token_ids
