"""The executor as a child process: client, child and wire format."""
