"""Inputs that must be refused, beside a victim that must not notice."""
