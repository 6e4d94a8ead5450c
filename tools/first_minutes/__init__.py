"""Runs README's first screen as it is written, in a terminal that is recorded, and says what a newcomer waits for.

screen.py    the commands of README above "## Your own model", and the output that it shows of each
terminal.py  shells in pseudo terminals, and what they write with its times
session.py   runs the commands and judges each: its exit code, its silences, its output
report.py    the recording as asciinema's cast, version 2, and a summary
root.py      an empty Debian to run it in: `make first-minutes`
"""
