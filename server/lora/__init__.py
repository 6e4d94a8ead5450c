"""LoRA adapters as clients see them: names, files, and the model that answers for each.

    registry.py  names and what they stand for; load, load again, unload; on demand
    files.py     which files of an adapter are read, and that they lie where they may
    store.py     the server's own copies, from which the executor loads, also after a death
    modules.py   `--lora-modules`

The engine knows an adapter by the digest of its content alone (engine/core/lora.py).
"""
