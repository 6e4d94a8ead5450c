"""The verbs of the `cohort` command that are the server's own, a file each; `clients/` has the others. Their flags are declared
here and nothing else is imported until one runs, for `cohort --help` must stay quick."""
