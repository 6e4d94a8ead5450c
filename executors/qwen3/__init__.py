"""`Qwen3ModelExecutor`: an `LlmExecutor` for Qwen3 models only, with its own decode runner."""

FAMILY = "qwen3"
"""Model family that the executor serves."""
