"""The asyncio scheduler and the life of a request. No torch, no FastAPI."""
