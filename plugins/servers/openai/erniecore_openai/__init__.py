"""The server ``openai``: chat completions, completions, tools, reasoning and metrics over HTTP, as OpenAI's clients expect."""
