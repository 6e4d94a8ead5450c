"""From the engine's deltas to the wire: chat and completion choices, reasoning, tool formats."""
