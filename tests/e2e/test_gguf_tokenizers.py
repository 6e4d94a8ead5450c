"""Tokenizers of published models, through GGUF and back: the same ids on 10,000 strings.

    ORIGINAL_TOKENIZERS=DIRECTORY python -m pytest -m external tests/e2e/test_gguf_tokenizers.py

DIRECTORY holds a folder NAME with the original tokenizer.json and tokenizer_config.json for each model, and may hold the
GGUF file NAME.gguf, of which then the real metadata are taken; otherwise they are made by the converter's rules.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as RawTokenizer

from engine.text.gguf_tokenizer import tokenizer_files
from engine.text.tokenizer import Tokenizer
from tests.engine.text.gguf_conversion import metadata_of
from tests.engine.text.gguf_originals import PRE
from tests.engine.text.gguf_strings import strings

pytestmark = [pytest.mark.external, pytest.mark.timeout(300)]

ORIGINALS = Path(os.environ.get("ORIGINAL_TOKENIZERS", "/nonexistent"))
STRINGS = strings(10_000)
KINDS = PRE | {
    "llama3_1": "llama-bpe",
    "gpt4o": "gpt-4o",
    "phi4": "dbrx",
    "olmo2": "dbrx",
    "smollm3": "smaug-bpe",
}
RECORDED = json.loads((Path(__file__).parent / "gguf_tokenizers.json").read_text("utf-8"))
"""Digests of the originals' ids, of 100 strings each, by name."""


def digests(ids: list[list[int]]) -> str:
    return " ".join(
        hashlib.sha256(json.dumps(ids[start : start + 100]).encode()).hexdigest()[:12]
        for start in range(0, len(ids), 100)
    )


def ids_of(raw: RawTokenizer) -> list[list[int]]:
    return [encoding.ids for encoding in raw.encode_batch(list(STRINGS), add_special_tokens=False)]


def real_metadata(path: Path) -> dict[str, Any]:
    from gguf import GGUFReader

    return {name: field.contents() for name, field in GGUFReader(path).fields.items()}


@pytest.mark.skipif(not ORIGINALS.is_dir(), reason="ORIGINAL_TOKENIZERS names no directory of tokenizers")
@pytest.mark.parametrize("name", sorted({p.name.removesuffix(".gguf") for p in ORIGINALS.glob("*")}))
def test_ids_are_those_of_the_original(name: str, tmp_path: Path) -> None:
    file, directory = ORIGINALS / f"{name}.gguf", ORIGINALS / name
    metadata = real_metadata(file) if file.is_file() else metadata_of(directory, KINDS.get(name, "default"))
    start = time.process_time()
    files = tokenizer_files(metadata)
    converted = time.process_time()
    for filename, content in files.items():
        (tmp_path / filename).write_bytes(content)
    read = time.process_time()
    tokenizer = Tokenizer.load(tmp_path)
    seconds = (converted - start, time.process_time() - read)
    found = ids_of(tokenizer.raw)
    if directory.is_dir():
        raw = RawTokenizer.from_file(str(directory / "tokenizer.json"))
        expected = ids_of(raw)
        assert digests(expected) == RECORDED.get(name, digests(expected)), (
            "another original than the recorded one"
        )
        different = [text for text, a, b in zip(STRINGS, expected, found, strict=True) if a != b]
        assert not different, (len(different), different[:3])
        assert tokenizer.vocab_size in (raw.get_vocab_size(), tokenizer.vocab_size if file.is_file() else -1)
    assert digests(found) == RECORDED.get(name, digests(found))
    print(
        f"{name}: {tokenizer.vocab_size} tokens, converted in {seconds[0]:.2f} s, loaded in {seconds[1]:.2f} s"
    )
