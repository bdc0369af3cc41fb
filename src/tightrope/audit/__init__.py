"""Can a reward model be trusted, and what is wrong with it? Pure measures of scores and texts, and what they mean."""
