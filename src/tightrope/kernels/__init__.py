"""How arithmetic is done fast: the same numbers as torch's own operations, with less work or memory. No equations."""
