"""Host: what the kernel, the loader, the environment and the processor show without a driver."""
