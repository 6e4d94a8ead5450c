"""Policies of the scheduler; they combine freely. Which sequence starts next is decided in engine/waiting/.

budget.py    how many prompt tokens a step computes beside running decodes
victim.py    which sequence gives up its KV when the pool runs out
drafter.py   which tokens a step verifies as guesses
"""
