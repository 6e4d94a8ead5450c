"""docs/not-supported.md gives the messages for models as the loader writes them."""

import re
from pathlib import Path

import pytest

from executors.contract.errors import ConfigError
from executors.llm.model.architectures import find_family
from executors.llm.model.quantization import parse_quantization

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "not-supported.md").read_text("utf-8")


def row(model: str) -> str:
    [message] = re.findall(rf"^\| {re.escape(model)}.* \| (config.json: .+) \|$", PAGE, re.M)
    return str(message)


@pytest.mark.parametrize("method", ["AWQ", "GPTQ"])
def test_quantized_checkpoints(method: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_quantization({"quant_method": method.lower(), "bits": 4}, "config.json")
    assert str(error.value) == row(method)


def test_unknown_families() -> None:
    shown = row("a family").removesuffix(", ...")
    [architecture] = re.findall(r"'(\w+)'", shown)
    with pytest.raises(ConfigError) as error:
        find_family({"architectures": [architecture]}, "config.json")
    assert str(error.value).startswith(shown)
