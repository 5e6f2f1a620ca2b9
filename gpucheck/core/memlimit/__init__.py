"""What an amount of GPU memory means on each GPU, what holds a program to it, and whether it does.

Shares are of the total that NVML reports. CuPy, JAX and PyTorch multiply a fraction by CUDA's
total, which is a little smaller, so the same fraction never exceeds the limit there.
"""
