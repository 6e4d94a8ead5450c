"""The engine core: schedules sequences of token ids on one executor.

engine.py     what callers see     loop.py      the loop task        scheduler.py  which sequences a step computes
intake.py     requests come in     steps.py     steps submitted      results.py    what a step gave
endings.py    ends before time     restart.py   executor restarts    recovery.py   what follows a failure
delivery.py   deltas to readers    inbox.py     commands             sequences.py  which exist, and what they hold
counters.py   figures              health.py    what is reported     lora.py       LoRA adapters in the executor
spare_memory.py  KV memory given back after a burst     step_watch.py  what each step computed, for subscribers
"""
