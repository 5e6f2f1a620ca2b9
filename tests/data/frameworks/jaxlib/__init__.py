"""Stands in for JAX's compiled half."""
