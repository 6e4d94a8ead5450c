"""Where an executor computes: what is different between a CPU and accelerators.

base.py    what a device says of itself, and what it does for the executor
table.py   finds a device by its name or by torch's
cpu.py     the machine's own processors and memory
...        a file for each other kind, named in executors/devices.py

The rooms above ask a `Device` and name none of them.
"""
