"""The servers that run on this machine: `cohort ps` shows them, `cohort stop` ends them.

registry.py     the file that each server writes while it runs
processes.py    what /proc says of them: whether they live, since when, how much memory they have
"""
