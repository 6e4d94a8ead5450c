"""Facts that the commands `info`, `list`, `doctor` and `verify` collect about checkpoints, torch and the machine, each in a
process of its own.

    tool_process.py   the process: one job as JSON in, one answer as JSON out
    describe.py   a checkpoint's sizes and what fits into memory, without its weights
    fits.py       the context that fits, for many checkpoints
    box.py        CPU, cgroups, memory: no torch
    kernels.py    torch, devices, and which kernels the executor uses here
    compare.py    logits and greedy tokens of the executor beside those of transformers
    reference.py  transformers' part of that
"""
