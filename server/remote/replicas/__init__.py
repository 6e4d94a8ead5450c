"""Several engines behind one front end: `cohort ray serve`, and the same as a Ray Serve application.

clients --HTTP--> ingress (HTTP, templates, tokenizer, text, journal, router) --Ray--> replica (scheduler, KV, executor)

ingress                                    replica
ingress.py  puts the ingress together      engine.py   an engine, and a session for each ingress
core.py     the engine core: places        (the rest is `server.remote.workers`: sequences.py, questions.py, forwarded.py)
            sequences, keeps the journal
journal.py  what a sequence needs to go on elsewhere
router.py   which replica comes first: no Ray, no I/O
fleet.py    the replicas there are, and a link to each
figures.py  /metrics of all of them        routes.py   paths that concern replicas

both: messages.py (what is said beyond `server.remote.messages`), `server.remote` (a link whose bytes Ray carries)
placing.py: what Ray reserves. ray_side.py and serve_app.py: the only modules that import Ray
"""
