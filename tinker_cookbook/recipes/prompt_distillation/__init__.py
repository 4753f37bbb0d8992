"""Teach a model to do without its prompt: a teacher has it, the student learns the answers alone."""
