"""How the processes of a server start: from settings to parts that are put together, and their life to the end."""
