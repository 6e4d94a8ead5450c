"""Real clients, each in an environment of its own, against a live server. See `__main__.py`."""
