"""Code as a response: run in a sandbox, judged outside it."""
