"""A server of the Tinker API: LoRA training and sampling from one model definition."""

import os

# Read when torch loads its OpenMP runtime, so this must come before `import torch`. A decode step is many short
# parallel regions: threads that fall asleep between them cost up to a third of the time, threads that never do
# make a busy machine many times slower. A spin of about a tenth of a millisecond avoids most of both.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")
