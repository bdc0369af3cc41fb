"""Did the work on speed move learning? The same PPO with each optimisation switched back, and what differs."""
