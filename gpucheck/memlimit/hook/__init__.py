"""Folder put in front of PYTHONPATH for a limited command; it holds only the import hook."""
