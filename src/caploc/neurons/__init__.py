"""CNL: the same questions for feed-forward neurons."""
