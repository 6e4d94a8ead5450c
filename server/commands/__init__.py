"""The verbs of the `cohort` command beside `serve`, a file each. Their flags are declared here and nothing else is imported
until one runs, for `cohort --help` must stay quick."""
