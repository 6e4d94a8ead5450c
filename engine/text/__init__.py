"""Tokenizing, incremental detokenizing and stop strings."""
