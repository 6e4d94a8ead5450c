"""`Qwen3ModelExecutor`: `LlmExecutor` for Qwen3 models alone.

The family itself, as every other, is a row of executors/llm/model/families.py.
"""

FAMILY = "qwen3"
"""The one model family that it serves."""
