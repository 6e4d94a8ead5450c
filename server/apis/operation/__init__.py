"""Paths for operators: health, metrics, executors, requests, settings."""
