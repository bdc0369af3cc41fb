"""How credit is assigned and what is minimised; one file an algorithm."""
