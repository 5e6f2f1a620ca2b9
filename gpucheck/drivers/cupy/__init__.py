"""CuPy: GPU arrays, products, kernels and times for the benchmarks."""
