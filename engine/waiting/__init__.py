"""Sequences that wait to be started: who may wait (admission), in which order they start, and how long that will take.

admission.py      which requests can be served at all, or soon enough
order.py          queue policies: fcfs and priority; fair.py: the tenant served least comes first
wait_estimate.py  how much waits, and the time until a new request starts; forecast.py: before anything was measured
not_started.py    since when and until when each sequence waits
"""
