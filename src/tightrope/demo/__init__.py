"""The demo: a small model learns to write, then is steered towards positive movie reviews."""
