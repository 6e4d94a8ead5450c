"""Cohort beside another server on the same machine, model and load.

install.py    vLLM's CPU build in an environment of its own
llamacpp.py   llama.cpp's programs, built from source
models.py     the models: generated, so nothing is downloaded
gguf_files.py the GGUF files that llama.cpp and Cohort both serve
servers.py    starting, waiting for and stopping a server
limits.py     what this machine can do at most, measured in the same run
roofline.py   what a workload takes at least on such a machine
compare.py    what is compared under which workload, and the ratios
__main__.py   the command: python -m benchmarks.peers
"""
