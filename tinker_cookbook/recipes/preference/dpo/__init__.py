"""Direct preference optimization: pairs of answers, and no judge."""
