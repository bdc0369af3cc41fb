"""Networks, roles and the one forward pass that knows positions and shifts."""
