"""Placement: which device a program gets, claims on GPUs, and the command that runs on them."""
