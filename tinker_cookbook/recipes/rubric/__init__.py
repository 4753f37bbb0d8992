"""Reinforcement learning on what a model thinks of the answers: it grades them against a rubric."""
