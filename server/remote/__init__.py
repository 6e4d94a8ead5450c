"""What API workers and replicas share: frames of messages, and one end of a link.

codec.py   lists of messages as frames, with the limits and errors of `executors.process.wire`
link.py    one end, on the event loop: over a socket, or over bytes that other code carries (pipe.py)
"""
