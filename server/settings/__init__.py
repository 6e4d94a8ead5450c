"""Settings of `cohort serve`, and the flags of other servers."""
