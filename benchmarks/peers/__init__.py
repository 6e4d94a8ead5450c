"""Cohort beside another server on the same machine, model and load.

install.py    vLLM's CPU build in an environment of its own
models.py     the models: generated, so nothing is downloaded
servers.py    starting, waiting for and stopping either server
limits.py     what this machine can do at most, measured in the same run
compare.py    what is compared under which workload, and the ratios
__main__.py   the command: python -m benchmarks.peers
"""
