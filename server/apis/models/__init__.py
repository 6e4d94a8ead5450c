"""The served names, in OpenAI's and Anthropic's forms."""
