"""Tightrope: reinforcement learning from human feedback on language models, on one machine."""

__version__ = "0.1.0"
