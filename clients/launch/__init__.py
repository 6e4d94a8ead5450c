"""`cohort launch`: an installed agent against a running server."""
