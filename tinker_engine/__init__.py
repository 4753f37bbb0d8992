"""A server of the Tinker API: LoRA training and sampling from one model definition."""

import os

# Read when torch loads its OpenMP runtime, so this must come before `import torch`. A decode step is many short
# parallel regions: threads that fall asleep between them cost up to a third of the time, threads that never do
# make a busy machine many times slower. A spin that is as long as most gaps between two regions avoids most
# of both; below about 10,000 it is not, on an EPYC.
os.environ.setdefault("GOMP_SPINCOUNT", "15000")
