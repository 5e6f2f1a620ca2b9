"""The folder put in front of PYTHONPATH for a limited command: an import hook, and no more."""
