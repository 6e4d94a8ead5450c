"""Chat templates: the sandbox that renders them, its limits, and the forms of messages that they take."""
