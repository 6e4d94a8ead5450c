"""`Qwen3ModelExecutor`: `LlmExecutor` for Qwen3 models alone, with a decode runner of its own."""
