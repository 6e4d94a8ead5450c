"""`Qwen3ModelExecutor`: `LlmExecutor` for Qwen3 models alone, with a decode runner of its own."""

FAMILY = "qwen3"
"""The one model family that it serves."""
