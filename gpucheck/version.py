"""Version of the program, which stands in every document that it writes."""

__version__ = "0.1.0"
