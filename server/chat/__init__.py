"""From chat messages to a prompt, and from generated text back to a message."""
