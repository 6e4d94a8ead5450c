"""Proofs that what operators are given works: image, compose file, dashboard, alert rules."""
