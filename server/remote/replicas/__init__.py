"""Several engines behind one front end: `cohort ray serve`, and the same as a Ray Serve application.

clients --HTTP--> ingress (HTTP, templates, tokenizer, text, journal, router) --Ray--> replica (scheduler, KV, executor)

Here is the ingress's side; a replica answers by `server.remote.workers` (session.py, sequences.py, questions.py, forwarded.py).

core.py     the engine core: places sequences, keeps the journal
journal.py  what a sequence needs to go on elsewhere
router.py   which replica comes first: no Ray, no I/O
fleet.py    the replicas there are, and a link to each
figures.py  /metrics of all of them        routes.py   paths that concern replicas

both: messages.py (messages beyond `server.remote.messages`), node.py (what they agree on), `server.remote` (a link whose bytes
Ray carries). What Ray starts is in `server.ray_serve`.
"""
