"""Model families of LlmExecutor."""
