"""Learning from preferences: pairs of answers, judges of them, and both in one pipeline."""
