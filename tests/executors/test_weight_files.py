"""Which files of a directory or a repository hold the weights."""

from __future__ import annotations

import re

import pytest

from executors.contract import ConfigError
from executors.weight_files import INDEX, SINGLE, has_weights, index_of, weight_files

SHARDS = tuple(f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3))
OTHERS = (
    "config.json",
    "adapter_model.safetensors",
    "optimizer.safetensors",
    "training_args.safetensors",
    "rng_state_0.safetensors",
)


def chosen(*names: str, index: dict[str, str] | None = None) -> tuple[str, ...]:
    present = (*names, *OTHERS)
    named = index_of(present)
    return weight_files(present, named, None if named is None else {"weight_map": index}).files


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((SINGLE,), (SINGLE,)),
        (SHARDS, SHARDS),
        ((SINGLE, *SHARDS), (SINGLE,)),
        (("foo.safetensors",), ("foo.safetensors",)),
        (("pytorch_model.safetensors",), ("pytorch_model.safetensors",)),
        (("b.safetensors", "a.safetensors"), ("a.safetensors", "b.safetensors")),
        ((*SHARDS, "head.safetensors"), ("head.safetensors", *SHARDS)),
        ((*SHARDS, "consolidated.safetensors"), SHARDS),
        ((*SHARDS, "consolidated-00001-of-00002.safetensors"), SHARDS),
        ((*SHARDS, "ema-00001-of-00009.safetensors"), SHARDS),
        (("consolidated.safetensors",), ("consolidated.safetensors",)),
        (("w-0-of-2.safetensors", "w-1-of-2.safetensors"), ("w-0-of-2.safetensors", "w-1-of-2.safetensors")),
        (("my-lora.safetensors", "foo.safetensors"), ("foo.safetensors",)),
        ((), ()),
    ],
)  # fmt: skip
def test_without_an_index(names: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert chosen(*names) == expected
    assert has_weights((*names, *OTHERS)) is bool(expected)


@pytest.mark.parametrize("gap", [0, 1, 2])
def test_the_missing_shard_is_named(gap: int) -> None:
    there = [shard for shard in SHARDS if shard != SHARDS[gap]]
    with pytest.raises(
        ConfigError, match=rf"^{SHARDS[gap]} is missing: there are 2 of 3 shards and no index$"
    ):
        chosen(*there)


@pytest.mark.parametrize(
    "shard", ["model_{}_of_2", "model_0{}-of-02", "model.{}-of-2", "part{}_of_2", "a.fp16-0000{}-of-00002"]
)
def test_other_spellings_of_shards(shard: str) -> None:
    one, two = (f"{shard.format(number)}.safetensors" for number in (1, 2))
    assert chosen(one, two) == (one, two)
    with pytest.raises(ConfigError, match=f"^{re.escape(one)} is missing: there are 1 of 2 shards"):
        chosen(two)


def test_an_index_decides() -> None:
    index = {"a": SHARDS[0], "b": SHARDS[2]}
    assert chosen(INDEX, *SHARDS, "extra.safetensors", index=index) == (SHARDS[0], SHARDS[2])
    assert chosen("foo.safetensors.index.json", *SHARDS, index=index) == (SHARDS[0], SHARDS[2])
    assert chosen("consolidated.safetensors.index.json", *SHARDS) == SHARDS
    # What the index names was joined or renamed, and the index stayed.
    assert chosen(INDEX, SINGLE, SHARDS[0], index=index) == (SINGLE,)
    assert chosen(INDEX, "foo.safetensors", index=index) == ("foo.safetensors",)
    # A file that is missing may hold nothing that the model needs.
    assert chosen(INDEX, SHARDS[0], index=index) == (SHARDS[0], SHARDS[2])
    assert chosen(INDEX, index=index) == (SHARDS[0], SHARDS[2])


def test_indexes_that_say_nothing() -> None:
    with pytest.raises(ConfigError, match="two indexes of weights"):
        chosen("a.safetensors.index.json", "b.safetensors.index.json", *SHARDS)
    for index in ({}, {"a": "../x.safetensors"}, {"a": ".."}):
        with pytest.raises(ConfigError, match=f"^{INDEX}: "):
            chosen(INDEX, *SHARDS, index=index)
