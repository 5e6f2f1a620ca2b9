"""Benchmarks: how fast the CPU and the GPUs are, compared with the hardware and each other."""
