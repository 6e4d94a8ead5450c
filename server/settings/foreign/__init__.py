"""Flags and environment variables of other servers: which setting does the same here, which change nothing, which are refused."""
