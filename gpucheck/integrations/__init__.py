"""Integrations: gpucheck inside other programs (pytest, a framework's own errors)."""
