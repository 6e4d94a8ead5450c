"""HTTP in, HTTP out: the OpenAI-compatible server. Knows the public API of engine and nothing of torch."""

__version__ = "0.2.0"  # the one place; the build reads it from here
