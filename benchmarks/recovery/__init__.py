"""How long streams with long prompts stand still when their executor is killed, and whether they notice anything else.

    python -m benchmarks.recovery [--only smollm2,qwen3-0.6b-int8] [--short] [--streams 8] [--flip 1000] [--json FILE]

cases.py has models and flags, arena.py finds the server's KV memory and flips bytes in it, rounds.py asks, kills and compares.
Each case compares the tokens of streams under a kill with those of the same calls undisturbed. The longest pause of each
stream may be at most what an executor needs to load, measured by killing one that is idle, and half a second.
"""
