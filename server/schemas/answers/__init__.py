"""Types of the server's answers: TypedDicts that encoders fill, mypy checks, and `/openapi.json` is derived from.

A folder member per dialect. `Raw` stands for a member that an encoder may give as JSON that is encoded already.
"""
