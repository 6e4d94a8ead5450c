"""More front-end processes: `--api-server-count N`.

clients --TCP--> worker (HTTP, templates, tokenizer, text, SSE) --Unix socket--> server (scheduler, journal, store, adapters)

worker side                               server side
remote_core.py    the engine core         sequences.py one worker's sequences, given to the engine
remote_parts.py   judge, store, adapters  questions.py its questions, answered by judge, store and adapters
forwarding.py     requests passed on      forwarded.py requests that only the server can answer
                                          session.py   all of these for one worker
                                          pool.py      starts workers, replaces dead ones, drains and stops them
both: server.remote (link and frames), messages.py, wire_errors.py
"""
