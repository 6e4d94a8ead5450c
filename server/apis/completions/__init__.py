"""OpenAI's completions: texts that are continued."""
