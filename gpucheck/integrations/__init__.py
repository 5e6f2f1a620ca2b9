"""Integrations: gpucheck inside other programs (pytest, RAPIDS, a framework's own errors)."""
