"""Other Python interpreters, and the frameworks installed there."""
