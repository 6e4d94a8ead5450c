"""What the commands `info`, `list`, `doctor` and `verify` ask of checkpoints, torch and the machine, in processes of their own.

tool_process.py   the process: one job as JSON in, one answer as JSON out
describe.py   a checkpoint's sizes and what fits into memory, without its weights
fits.py       the context that fits, for many checkpoints
box.py        CPU, cgroups, memory: no torch
kernels.py    torch, CUDA, and which kernels the executor takes here
compare.py    logits and greedy tokens of the executor beside those of transformers
reference.py  transformers' part of that
"""
