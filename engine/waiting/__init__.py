"""Sequences that wait to be started: who may wait (admission), in which order they start, and how long that will take.

queue.py          WaitingQueue: the sequences that wait, their order, their number
order.py          queue policies: fcfs and priority; fair.py: the tenant served least comes first
not_started.py    since when and until when each sequence waits
wait_estimate.py  the time until a new request starts; forecast.py: before anything was measured; answers.py: how long outputs are
reasons.py        what each sequence waited for, step by step
second_look.py    an admission taken back after the first steps; too_late.py: sequences that are dropped
admission.py      which requests can be served at all, or soon enough
"""
