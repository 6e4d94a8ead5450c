"""Executors without a model, for tests: a token is a function of the history."""
