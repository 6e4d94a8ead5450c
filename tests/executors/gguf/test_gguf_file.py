"""The strict reader of GGUF headers."""

import re
import resource
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES

from executors.contract.errors import ConfigError
from executors.gguf.file import GgufTensor, read_gguf
from executors.gguf.types import BY_ID, BY_NAME, FORKED, WITHDRAWN
from tests.executors.gguf.gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    STRING,
    U8,
    U32,
    U64,
    array,
    entry,
    gguf,
    string,
    strings,
    tensor,
    text,
    u16,
    u32,
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_every_type_of_the_gguf_package_has_its_sizes():
    assert {(one.value, one.name, *GGML_QUANT_SIZES[one]) for one in GGMLQuantizationType} == {
        (number, one.name, one.values, one.num_bytes) for number, one in BY_ID.items()
    }
    assert not (WITHDRAWN.keys() | FORKED.keys()) & BY_ID.keys()
    assert BY_NAME["Q4_K"].num_bytes == 144


def test_reads_what_the_gguf_package_writes(path: Path):
    writer = GGUFWriter(path, "llama")
    writer.add_uint32("a.u32", 7)
    writer.add_int8("a.i8", -3)
    writer.add_uint64("a.u64", 1 << 60)
    writer.add_float32("a.f32", 0.1)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "Grüße\n")
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_array("a.floats", [0.5, 2.0])
    writer.add_array("a.bools", [True, False])
    writer.add_array("a.strings", ["one", "", "drei"])
    matrix = np.arange(24, dtype=np.float32).reshape(4, 6)
    blocks = np.arange(3 * 2 * 34, dtype=np.uint8).reshape(3, 68)
    writer.add_tensor("matrix", matrix)
    writer.add_tensor("blocks", blocks, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    read = read_gguf(path)

    metadata = read.metadata
    assert metadata["general.architecture"] == "llama"
    assert (metadata["a.u32"], metadata["a.i8"], metadata["a.u64"]) == (7, -3, 1 << 60)
    assert metadata["a.f32"] == np.float32(0.1) and metadata["a.f64"] == 0.1
    assert metadata["a.bool"] is True and metadata["a.string"] == "Grüße\n"
    assert metadata["a.ints"].tolist() == [1, -2, 3] and metadata["a.ints"].dtype == np.int32
    assert metadata["a.floats"].tolist() == [0.5, 2.0]
    assert metadata["a.bools"].tolist() == [True, False] and metadata["a.bools"].dtype == bool
    assert metadata["a.strings"] == ["one", "", "drei"]
    theirs = {one.name: one for one in GGUFReader(path).tensors}
    for name, kind, shape, raw in (
        ("matrix", "F32", (4, 6), matrix.tobytes()),
        ("blocks", "Q8_0", (3, 64), blocks.tobytes()),
    ):
        one = read.tensors[name]
        assert one == GgufTensor(name, kind, shape, theirs[name].data_offset, len(raw), path)
        assert path.read_bytes()[one.offset : one.offset + one.num_bytes] == raw
    assert read.parts == (path,) and read.data_offset == min(one.offset for one in read.tensors.values())


def test_long_arrays_are_absent_where_arrays_are_not_wanted(path: Path):
    path.write_bytes(
        gguf([
            strings("long.strings", ["x"] * 1025),
            array("long.numbers", U32, 1025, bytes(4 * 1025)),
            strings("short", ["x"] * 1024),
            u32("after", 5),
        ])
    )  # fmt: skip

    assert read_gguf(path, arrays=False).metadata == {"short": ["x"] * 1024, "after": 5}
    assert read_gguf(path).metadata.keys() == {"long.strings", "long.numbers", "short", "after"}


def test_arrays_of_arrays(path: Path):
    inner = struct.pack("<IQ2I", U32, 2, 5, 6) + struct.pack("<IQ", STRING, 1) + string("x")
    path.write_bytes(gguf([array("a", ARRAY, 2, inner)]))

    numbers, texts = read_gguf(path).metadata["a"]

    assert numbers.tolist() == [5, 6] and texts == ["x"]


def test_only_the_tokenizer_may_hold_other_bytes_than_utf8(path: Path):
    path.write_bytes(gguf([strings("tokenizer.ggml.tokens", ["a", b"\xe2\x82", b"\xff"])]))

    tokens = read_gguf(path).metadata["tokenizer.ggml.tokens"]

    assert [one.encode("utf-8", "surrogateescape") for one in tokens] == [b"a", b"\xe2\x82", b"\xff"]
    path.write_bytes(gguf([text("tokenizer.chat_template", b"x\xff")]))
    assert read_gguf(path).metadata["tokenizer.chat_template"] == "x\udcff"


def test_text_that_nothing_reads_may_be_any_bytes(path: Path):
    """llama.cpp and the gguf package take them, too."""
    path.write_bytes(
        gguf([
            text("general.description", b"caf\xe9 \xff"),
            strings("general.tags", ["a", b"\x80"]),
            entry(b"odd\xff", U32, struct.pack("<I", 7)),
            text("general.name", "n"),
        ])
    )  # fmt: skip

    for arrays in (True, False):
        assert read_gguf(path, arrays).metadata == {
            "general.description": r"caf\xe9 \xff", "general.tags": ["a", r"\x80"], r"odd\xff": 7, "general.name": "n",
        }  # fmt: skip


def test_a_truth_value_is_any_byte_but_0(path: Path):
    path.write_bytes(
        gguf([entry("a", BOOL, b"\x02"), entry("b", BOOL, b"\0"), array("c", BOOL, 3, b"\x01\x09\0")])
    )

    metadata = read_gguf(path).metadata

    assert (metadata["a"], metadata["b"]) == (True, False) and metadata["c"].tolist() == [True, True, False]


def test_version_2_and_an_alignment_of_its_own(path: Path):
    data = struct.pack("<2f", 1.0, 2.0) + bytes(56) + struct.pack("<f", 3.0)
    index = [tensor("a", (2,), 0, 0), tensor("b", (1,), 0, 64)]
    path.write_bytes(gguf([u32("general.alignment", 64)], index, data, version=2, alignment=64))

    b = read_gguf(path).tensors["b"]

    assert b.offset % 64 == 0 and path.read_bytes()[b.offset :] == struct.pack("<f", 3.0)


_F = bytes(64)
FAULTS = {
    "empty": (b"", "cannot be read"),
    "magic": (b"GGML" + bytes(60), "not a GGUF file: it begins with b'GGML'"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid", "it is a Git LFS pointer in place of the file: git lfs"),
    "cut in the magic": (b"GG", "not a GGUF file"),
    "cut in the version": (b"GGUF\x03", "truncated: the version needs 4 bytes"),
    "version 1": (gguf(version=1), "GGUF version 1 is not supported; supported: version 2 and 3"),
    "version 4": (gguf(version=4), "GGUF version 4 is not supported"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "GGUF big-endian (version 3) is not supported"),
    "2^60 entries": (gguf(num_entries=1 << 60), "1152921504606846976 metadata entries do not fit"),
    "2^60 tensors": (gguf(num_tensors=1 << 60), "1152921504606846976 tensors do not fit"),
    "more entries than are there": (gguf([u32("a", 1)], data=_F, num_entries=2), "a metadata key before byte"),
    "2^60 strings": (gguf([array("a", STRING, 1 << 60, b"")]), "metadata a has 1152921504606846976 elements"),
    "2^60 numbers": (gguf([array("a", U64, 1 << 60, b"")]), "metadata a needs|metadata a has"),
    "2^60 arrays": (gguf([array("a", ARRAY, 1 << 60, b"")]), "metadata a has 1152921504606846976 elements"),
    "long string": (gguf([entry("a", STRING, struct.pack("<Q", 1 << 62))]), "truncated: metadata a needs 4611686"),
    "long string in a list": (gguf([array("a", STRING, 1, struct.pack("<Q", 1 << 40))]), "a string of metadata a"),
    "kind": (gguf([entry("a", 13, bytes(8))]), "metadata a has values of the unknown kind 13"),
    "kind in an array": (gguf([array("a", 77, 1, bytes(8))]), "metadata a has values of the unknown kind 77"),
    "key twice": (gguf([u32("a", 1), u32("a", 1)]), "metadata a occurs twice"),
    "nested": (gguf([array("a", ARRAY, 1, struct.pack("<IQ", ARRAY, 1) * 60)]), "arrays nested more than 4 deep"),
    "odd key": (gguf([u32("a\nb", 1), u32("a\nb", 1)]), r"metadata 'a\nb' occurs twice"),
    "alignment 24": (gguf([u32("general.alignment", 24)]), "general.alignment is 24; a power of two"),
    "alignment 0": (gguf([u32("general.alignment", 0)]), "general.alignment is 0; a power of two"),
    "alignment 2^31": (gguf([u32("general.alignment", 1 << 31)]), "general.alignment is 2147483648"),
    "alignment text": (gguf([text("general.alignment", "x")]), "general.alignment is x"),
    "no dimensions": (gguf((), [tensor("t", (), 0, 0)], _F), "tensor t has 0 dimensions"),
    "dimensions": (gguf((), [tensor("t", (1, 1, 1, 1, 1), 0, 0)], _F), "tensor t has 5 dimensions"),
    "2^31 dimensions": (gguf((), [tensor("t", (1,), 0, 0, 1 << 31)], _F), "tensor t has 2147483648 dimensions"),
    "size 0": (gguf((), [tensor("t", (4, 0), 0, 0)], _F), "tensor t has the shape [0, 4]"),
    "huge shape": (gguf((), [tensor("t", (1 << 63, 1 << 63), 0, 0)], _F), "truncated: tensor t ends at byte"),
    "type": (gguf((), [tensor("t", (4,), 99, 0)], _F), "tensor t has the unknown type 99; take a file of a"),
    "Ollama's first MXFP4": (
        gguf((), [tensor("t", (4,), 4, 0)], _F), "4 (Q4_2 once, and MXFP4 in Ollama's first files of gpt-oss); pull the model"
    ),
    "old type": (gguf((), [tensor("t", (4,), 31, 0)], _F), "31 (Q4_0_4_4, which the format no longer has); take the Q4_0 file"),
    "type of a fork": (gguf((), [tensor("t", (4,), 139, 0)], _F), "the unknown type 139 (IQ4_K of ik_llama.cpp); take a file"),
    "type of a fork in rows": (gguf((), [tensor("t", (4,), 339, 0)], _F), "type 339 (a type of ik_llama.cpp); take a file"),
    "row": (gguf((), [tensor("t", (48, 2), 2, 0)], _F), "rows of 48 values, no multiple of the 32 of a Q4_0 block"),
    "offset": (gguf((), [tensor("t", (4,), 0, 16)], _F), "tensor t begins at byte 16 of the data, no multiple of 32"),
    "overlap": (
        gguf((), [tensor("t", (16,), 0, 0), tensor("u", (4,), 0, 32)], _F),
        "tensor u begins at byte 32 of the data, within tensor t",
    ),
    "tensor twice": (gguf((), [tensor("t", (4,), 0, 0), tensor("t", (4,), 0, 32)], _F), "tensor t occurs twice"),
    "beyond the end": (gguf((), [tensor("t", (17,), 0, 0)], _F), "truncated: tensor t ends at byte"),
    "far offset": (gguf((), [tensor("t", (4,), 0, 1 << 62)], _F), "truncated: tensor t ends at byte"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("arrays", [True, False])
def test_a_fault_is_one_line_that_names_the_file_and_the_field(path: Path, name: str, arrays: bool):
    raw, message = FAULTS[name]
    path.write_bytes(raw)

    with pytest.raises(ConfigError) as caught:
        read_gguf(path, arrays)

    said = str(caught.value)
    assert said.startswith(f"{path}: ") and said.isprintable()
    assert any(part in said for part in message.split("|")), said


def test_a_missing_file_and_a_directory(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such file"):
        read_gguf(tmp_path / "none.gguf")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_gguf(tmp_path)


def test_every_truncation_is_refused(path: Path):
    whole = gguf(
        [u32("a", 1), strings("s", ["x", "y"]), array("f", F32, 2, bytes(8)), array("b", U8, 3, bytes(3))],
        [tensor("t", (4, 2), 0, 0)],
        bytes(32),
    )
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ConfigError, match=re.escape(str(path))):
            read_gguf(path)
    path.write_bytes(whole)
    assert read_gguf(path).tensors["t"].shape == (2, 4)


@pytest.mark.parametrize("kind", [STRING, U64, ARRAY])
def test_a_small_file_that_claims_much_costs_nothing(path: Path, kind: int):
    path.write_bytes(gguf([array("a", kind, 1 << 60, b"")])[:64])
    with pytest.raises(ConfigError):
        read_gguf(path)  # imports and caches
    tracemalloc.start()
    before = time.thread_time()
    with pytest.raises(ConfigError):
        read_gguf(path)
    seconds, (_, peak) = time.thread_time() - before, tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert seconds < 0.05 and peak < 64 << 10


def test_a_vocabulary_of_262144_tokens_is_read_in_a_second(path: Path):
    count = 262_144
    tokens = [f"token {i:07}" for i in range(count)]
    path.write_bytes(
        gguf([
            strings("tokenizer.ggml.tokens", tokens),
            array("tokenizer.ggml.scores", F32, count, bytes(4 * count)),
            array("tokenizer.ggml.token_type", 5, count, bytes(4 * count)),
        ])
    )  # fmt: skip
    before, peak = time.thread_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    read = read_gguf(path)

    assert time.thread_time() - before < 1.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 128 << 10
    assert read.metadata["tokenizer.ggml.tokens"] == tokens
    assert len(read.metadata["tokenizer.ggml.scores"]) == count


def _split(folder: Path, number: int, names: list[str], count: int = 3, total: int = 3) -> Path:
    """Write part `number` (from 0) of a model in `count` files."""
    path = folder / f"m-{number + 1:05}-of-{count:05}.gguf"
    entries = [u16("split.no", number), u16("split.count", count)]
    if number == 0:
        entries += [
            text("general.architecture", "llama"),
            entry("split.tensors.count", 5, struct.pack("<i", total)),
        ]
    index = [tensor(name, (2,), 0, 32 * i) for i, name in enumerate(names)]
    path.write_bytes(gguf(entries, index, bytes(32 * len(names))))
    return path


def test_the_parts_of_a_split_model_are_merged(tmp_path: Path):
    first, second, third = (_split(tmp_path, i, names) for i, names in enumerate([[], ["a", "b"], ["c"]]))

    read = read_gguf(first)

    assert read.parts == (first, second, third)
    assert {name: one.path for name, one in read.tensors.items()} == {"a": second, "b": second, "c": third}
    assert read.metadata["general.architecture"] == "llama"


def test_faults_of_split_models(tmp_path: Path):
    first, second, third = (_split(tmp_path, i, names) for i, names in enumerate([[], ["a", "b"], ["c"]]))
    with pytest.raises(ConfigError, match=r"a later part of a model in 3 files; take m-00001-of-00003\.gguf"):
        read_gguf(second)
    moved = first.rename(tmp_path / "renamed.gguf")
    with pytest.raises(ConfigError, match="does not end in -00001-of-00003"):
        read_gguf(moved)
    moved.rename(first)
    _split(tmp_path, 2, ["a"])
    with pytest.raises(ConfigError, match=f"{third}: tensor a is in {second}, too"):
        read_gguf(first)
    _split(tmp_path, 2, ["c", "d"])
    with pytest.raises(ConfigError, match=r"split.tensors.count is 3, its parts hold 4 tensors"):
        read_gguf(first)
    second.rename(third)
    with pytest.raises(ConfigError, match=f"{second}: no such file"):
        read_gguf(first)
    third.rename(second)
    third.write_bytes(second.read_bytes())
    with pytest.raises(ConfigError, match=r"split.no and split.count are"):
        read_gguf(first)


def test_a_header_is_read_again_when_its_file_has_changed(path: Path):
    path.write_bytes(gguf([u32("a.number", 1)], []))
    first = read_gguf(path, arrays=False)
    first.metadata["a.number"] = 5  # a caller's copy is its own
    assert read_gguf(path, arrays=False).metadata == {"a.number": 1}
    path.write_bytes(gguf([u32("a.number", 2), u32("a.other", 3)], []))
    assert read_gguf(path, arrays=False).metadata == {"a.number": 2, "a.other": 3}
    path.unlink()
    with pytest.raises(ConfigError, match="no such file"):
        read_gguf(path, arrays=False)
