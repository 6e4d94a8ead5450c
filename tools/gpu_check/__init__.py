"""`make gpu-check`: what has to be seen on a real GPU, as parts that are run in order and append to a log.

    parts     the table: name, command, seconds it may take        __main__  runs them within a budget
    wheels    packages for machines without a network              log       the lines that add up

Checks are in tests/gpu, measurements in benchmarks/gpu; each part is a process of its own. Beside torch, triton, NumPy and
safetensors they need what `make gpu-wheels` brings along. These modules import none of it: a machine whose driver hangs still
gets its lines.
"""
