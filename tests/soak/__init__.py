"""A server under everything at once for a long time: nothing may grow."""
