"""Stored responses of the Responses API, and those that are generated in the background."""
