"""Reinforcement learning on the tasks of the package reasoning-gym: a hundred kinds of problems without end."""
