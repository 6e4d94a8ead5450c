"""Proofs that what operators are given works: container, compose file, dashboard, alert rules."""
