"""What is a response worth: reward sources, normalisation, shaping, and the judge that puts them together."""
