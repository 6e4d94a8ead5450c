"""Puts the parts of an executor together, and sizes its KV."""
