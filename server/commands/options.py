"""Options that several verbs take, written once: the same words everywhere."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def flag(help_: str, *names: str, metavar: str | None = None) -> Any:
    """An option of a verb; its default is said in the help text."""
    return typer.Option(*names, help=help_, metavar=metavar, show_default=False)


Text = str | None
Number = int | None

ModelArgument = Annotated[
    Text,
    typer.Argument(
        metavar="[MODEL]",
        help="A model directory, or a hub name ORG/NAME [default: the embedded cohort-tiny]",
        show_default=False,
    ),
]
Revision = Annotated[
    Text, flag("Branch, tag or commit of a model by hub name [its default branch].", "--revision")
]
DownloadDir = Annotated[
    Text, flag("Where models by hub name are kept [HF_HOME's].", "--download-dir", metavar="DIR")
]
Dtype = Annotated[Text, flag("auto, bfloat16, float16 or float32 [auto].", "--dtype")]
Device = Annotated[Text, flag("auto, cpu, cuda or cuda:N [auto].", "--device")]
MaxModelLen = Annotated[Number, flag("Context length in tokens [the model's].", "--max-model-len")]
MaxNumSeqs = Annotated[
    Number, flag("Sequences computed at once [64, fewer where memory is short].", "--max-num-seqs")
]
MaxNumBatchedTokens = Annotated[
    Number, flag("Tokens computed per step [2048; 512 per thread on a CPU].", "--max-num-batched-tokens")
]
BlockSize = Annotated[Number, flag("Tokens per KV block [16].", "--block-size")]
KvCacheMemory = Annotated[
    Text,
    flag(
        "Memory for KV, such as 4GiB; on a CPU it is then taken at the start, else as it is used [what is free].",
        "--kv-cache-memory-bytes",
        metavar="BYTES",
    ),
]
KvCacheDtype = Annotated[
    Text,
    flag(
        "Keys and values as auto: in the model's dtype; or fp8 (e4m3): twice as many tokens in the same memory [auto].",
        "--kv-cache-dtype",
    ),
]
Quantization = Annotated[
    Text,
    flag("Weights and activations in 8 bits: int8 on a CPU, fp8 on a GPU [none].", "--quantization", "-q"),
]
GpuMemoryUtilization = Annotated[
    float | None,
    flag(
        "Part of a GPU's memory that this server may take in all, weights and KV included; --kv-cache-memory-bytes, where it "
        "is given, decides about KV alone [0.9].",
        "--gpu-memory-utilization",
    ),
]
ConfigFile = Annotated[Text, flag("YAML file, or a preset: default, cpu, gpu.", "--config", metavar="FILE")]
AsJson = Annotated[bool, flag("Print JSON.", "--json")]
