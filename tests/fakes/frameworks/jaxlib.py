"""Stand-in for jaxlib."""

__version__ = "0.99.0"
