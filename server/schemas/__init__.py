"""Wire types of the HTTP API, and nothing else."""
