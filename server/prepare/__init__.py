"""From a request's validated body to a request of the engine."""
