"""HTTP around the routes: the protocol, limits on bodies, streamed and buffered responses, authentication, TLS, errors."""
