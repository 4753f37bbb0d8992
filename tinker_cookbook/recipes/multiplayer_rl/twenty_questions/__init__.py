"""Twenty questions, answered by another model or by a table."""
