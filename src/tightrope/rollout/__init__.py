"""Drawing responses, with the exact log-prob of every token that was drawn."""
