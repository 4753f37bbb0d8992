"""Reinforcement learning on mathematics: sums, GSM8K, MATH and others, graded by a checker that can be trusted."""
