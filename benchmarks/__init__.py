"""Named workloads; what they measured is in `results/`, what did not work in `LOG.md`."""
