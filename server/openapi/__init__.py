"""The description of the HTTP API: /openapi.json, and the tables of docs/api.md."""
