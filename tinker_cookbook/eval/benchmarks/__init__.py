"""Benchmarks: questions, environments that grade the answers, and results."""
