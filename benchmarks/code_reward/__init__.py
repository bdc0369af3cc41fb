"""What the code reward costs, and whether it passes solutions that are known to be right."""
