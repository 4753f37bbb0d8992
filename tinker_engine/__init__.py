"""A server of the Tinker API: LoRA training and sampling from one model definition."""

import os

# Read when torch loads its OpenMP runtime, so this must come before `import torch`. Between the thousands of
# short parallel regions of a decode step, waking sleeping threads costs up to a third of the time; spinning
# without limit makes a busy machine ten times slower. A short spin (well under a millisecond) has neither cost.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
