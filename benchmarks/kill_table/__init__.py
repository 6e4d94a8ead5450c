"""What a client sees when a server's processes die, hang, run out of memory or are told to stop: docs/kill-table.md.

    python -m benchmarks.kill_table [--server cohort|vllm|llamacpp] [--rounds 3] [--faults killed,hung] [--json FILE]

calls.py has the kinds of calls, faults.py what is done to the server, client.py records what comes over the wire, answers.py
reads it, judge.py compares it with the answers that the same calls got without a fault, and page.py writes the page from the
results.
"""
