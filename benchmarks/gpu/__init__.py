"""What is measured on a GPU: `make gpu-check` runs these as parts (`tools/gpu_check/parts.py`), each as a process of its own."""
