"""The engine core: schedules sequences of token ids on one executor.

engine.py     what callers see     loop.py      the loop task        scheduler.py  which sequences a step computes
inbox.py      commands             steps.py     steps submitted      sequences.py  which exist, and what they hold
endings.py    ends before time     restart.py   executor restarts    recovery.py   what follows a failure
delivery.py   deltas to readers    health.py    what is reported     loras.py   LoRA adapters held by the executor
spare_memory.py  KV memory given back after a burst     step_watch.py  what each step computed, for subscribers
"""
