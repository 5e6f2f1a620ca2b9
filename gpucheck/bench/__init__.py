"""Benchmarks: how fast the CPU and the GPUs are, held against the hardware and each other."""
