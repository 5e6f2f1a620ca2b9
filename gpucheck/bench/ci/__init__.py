"""Profiles, gates and baselines: what decides whether a machine is as fast as it should be."""
