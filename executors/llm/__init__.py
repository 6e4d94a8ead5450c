"""LlmExecutor: a paged decoder-only transformer on torch."""
