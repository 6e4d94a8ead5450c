"""Errors about `quantization_config`, of one line."""

from __future__ import annotations

from executors.contract.errors import ConfigError


def refused(where: str, what: str, known: str) -> ConfigError:
    """Return the error for a value that is not supported; `known`: those that are."""
    return ConfigError(f"{where}: quantization_config: {what[:120]} is not supported; supported: {known}")
