"""OpenAI's chat completions. Other dialects' conversations are converted to their body, `server.schemas.chat`."""
