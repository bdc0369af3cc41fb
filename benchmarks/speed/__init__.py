"""How fast is a step, ours and the peer's, on the same workload? ``python -m benchmarks.speed``; docs/speed.md."""
