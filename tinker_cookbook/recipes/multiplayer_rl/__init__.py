"""Games between models: a coordinator for players that run at the same time, opponents, and three games."""
