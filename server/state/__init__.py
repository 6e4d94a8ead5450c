"""What the routes read: the served model, once it is loaded, the server's stage, and responses that are kept."""
