"""What dialects share: reading a body, driving an answer."""
