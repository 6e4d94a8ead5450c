"""`cohort doctor`: what this machine can do, and an archive for a bug report."""
