"""Supervised fine-tuning on conversations, and sweeps over its settings."""
