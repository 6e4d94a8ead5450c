"""`make gpu-check`: what has to be seen on a real GPU, as parts that are run in order and append to a log.

    parts     the table: calls, order, seconds       __main__  the command      call     runs parts within a budget
    process   a part as a process of its own         meaning   rules that figures must keep
    log       the lines that add up                  sources   which files a part ran; recorder/ writes them down
    history   the course of each figure              page      README's and docs/gpu.md's figures
    wheels    packages for machines without a network

Checks are in tests/gpu, measurements in benchmarks/gpu; each part is a process of its own. Beside torch, triton, NumPy and
safetensors they need what `make gpu-wheels` brings along. These modules import none of it: a machine whose driver hangs still
gets its lines.
"""
