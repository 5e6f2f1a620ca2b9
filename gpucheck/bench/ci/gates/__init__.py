"""The verdicts of a profile's run: pure functions of what its processes brought."""
