"""One step, its loop, and everything that changes weights."""
