"""docs/not-supported.md gives the messages for models as the loader writes them."""

import re
from pathlib import Path
from typing import Any

import pytest

from executors.contract.errors import ConfigError
from executors.llm.checkpoint.claims import refuse_claim
from executors.llm.model.architectures import find_family
from executors.llm.model.quantization import parse_quantization

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "not-supported.md").read_text("utf-8")


def row(model: str) -> str:
    [message] = re.findall(rf"^\| {re.escape(model)}.* \| (config.json: .+) \|$", PAGE, re.M)
    return str(message)


@pytest.mark.parametrize(
    ("model", "value"),
    [
        ("bitsandbytes", {"quant_method": "bitsandbytes", "load_in_4bit": True}),
        ("HQQ", {"quant_method": "hqq"}),
        ("GPTQ of 2 or 3 bits", {"quant_method": "gptq", "bits": 3}),
        ("GPTQ packed for Marlin", {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}),
        ("AWQ packed for GEMV", {"quant_method": "awq", "bits": 4, "version": "gemv"}),
    ],
)
def test_quantized_checkpoints(model: str, value: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        refuse_claim(parse_quantization(value, "config.json"))
    assert str(error.value) == row(model)


def test_unknown_families() -> None:
    shown = row("a family").removesuffix(", ...")
    [architecture] = re.findall(r"'(\w+)'", shown)
    with pytest.raises(ConfigError) as error:
        find_family({"architectures": [architecture]}, "config.json")
    assert str(error.value).startswith(shown)
