"""Model behind the pretended CuPy: cards, memory, time, and the kernels in NumPy."""
