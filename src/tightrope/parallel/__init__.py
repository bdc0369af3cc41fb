"""Where the learner's sums are added up."""
