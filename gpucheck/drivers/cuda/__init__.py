"""CUDA driver (libcuda), in child processes with a deadline."""
