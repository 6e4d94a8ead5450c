"""`cohort ps` and `cohort stop`: the servers that run on this machine."""
