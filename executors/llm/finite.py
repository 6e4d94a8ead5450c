"""Explains in one line why the first step of a model gave numbers that are not finite."""

from __future__ import annotations

from pathlib import Path

from executors.contract import ExecutorConfig, ExecutorError, StepFailed
from executors.contract.errors import ConfigError, ItemFault
from executors.llm.checkpoint.files import Checkpoint
from executors.llm.step.direct import NoTokenSampled


def explained(error: StepFailed, config: ExecutorConfig) -> ExecutorError:
    """Return the error to raise if the first step ended with `error`. The settings of that step forbid no token.

    The result is a ConfigError that names a tensor with NaN or infinity or says that there is none; for other causes it is
    `error` itself. Reads the whole checkpoint.
    """
    if not isinstance(error, NoTokenSampled) or not config.model or config.load_format == "dummy":
        return error
    place = not_finite(Path(config.model))
    if place is not None:
        path, name = place
        return ConfigError(f"{path}: tensor {name} has numbers that are not finite")
    return ConfigError(
        f"{config.model}: its weights are finite, but {ItemFault.NOT_FINITE.message}: "
        "try another --dtype, such as bfloat16 or float32"
    )


def not_finite(directory: Path) -> tuple[Path, str] | None:
    """Return the file and the name of the first tensor in a checkpoint with a number that is not finite. Raises ConfigError."""
    checkpoint = Checkpoint(directory)
    present = checkpoint.names()
    try:
        for file in checkpoint.files.values():
            for name in file.names():
                if file.float_dtype(name) is None and not file.is_fp8(name):
                    continue  # a mask or the like
                if name in present and checkpoint.file_of(name) is file and not file.is_finite(name):
                    return file.path, file.own_name(name)
    finally:
        checkpoint.close()
    return None
