"""Usability of the GPUs: the checks, from the PCI bus to a running kernel, and the verdict."""
