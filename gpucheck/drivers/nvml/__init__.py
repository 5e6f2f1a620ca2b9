"""NVML, in child processes with a deadline."""
