"""Profiles for `bench --profile`: read, checked, explained, run and recorded."""
