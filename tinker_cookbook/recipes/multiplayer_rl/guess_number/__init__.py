"""Guess a number from hints, alone or as a race of several players."""
