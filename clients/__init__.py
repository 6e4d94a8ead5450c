"""Clients of a server, each a verb of the `cohort` command: bench, chat and run, demo, doctor, launch.

No part of the server imports them. Of the application they import what pyproject.toml's contract on clients lists:
the settings table and the few helpers of `server/commands` that print, fail and declare flags.
"""
