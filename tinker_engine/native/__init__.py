"""Kernels in C for fp32 on a CPU, compiled for the machine at first use.

Where there is no C compiler, or TINKER_ENGINE_NATIVE=0, torch does the same, more slowly.
"""
