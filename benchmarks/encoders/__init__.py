"""An encoder behind Cohort's HTTP server beside the same encoder within other libraries.

texts.py      the texts: words of the model's vocabulary, from 10 to 400 tokens
clients.py    clients over HTTP, in a process of their own
peers.py      torch, ONNX Runtime and OpenVINO, each in a process of an environment of its own
export.py     the ONNX file that these two read, made from torch, and its forms in int8
install.py    that environment
__main__.py   the command: python -m benchmarks.encoders
"""
