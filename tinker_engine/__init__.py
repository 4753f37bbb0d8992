"""A server of the Tinker API: LoRA training and sampling from one model definition."""

import os

# Read when torch loads its OpenMP runtime, so this must come before `import torch`. A decode step is many short
# parallel regions: threads that fall asleep between them cost up to a third of the time, threads that never do
# make a busy machine many times slower. A spin of about a fifth of a millisecond, as long as most gaps between two
# regions, avoids most of both: 32 rows of SmolLM2 took 34 s with 5,000 and 24 s with 12,000, on two quiet cores of an
# EPYC; with another program on one of them, 47 s with 5,000 and 59 s with 15,000.
os.environ.setdefault("GOMP_SPINCOUNT", "15000")
