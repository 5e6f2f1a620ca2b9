"""CuPy's bindings of CUDA's own libraries."""
