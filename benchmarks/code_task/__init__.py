"""A small model learns by reinforcement to write functions that pass their tests."""
