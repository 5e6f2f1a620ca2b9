"""Runs in several processes: started, merged, saved and compared."""
