"""Does the training code reach an optimum that is known exactly, and does it notice when it is broken on purpose?

``python -m benchmarks.proof`` (``make proof``) prints each claim with its number; docs/proof.md says how to read them.
"""
