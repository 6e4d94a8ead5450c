"""The model that `cohort serve` serves when none is named: the best one that fits among those on this disk.

rule.py      what excludes a model, and the order of the others: by names, sizes and headers
search.py    goes through the folders of other programs, asks the executor what fits, within a few seconds
memory.py    the last choice, for the next start
"""

from server.startup.best_model.search import ANOTHER, Choice, choose

__all__ = ["ANOTHER", "Choice", "choose"]
"""`choose` returns the choice; see search.py."""
