"""Runs in processes of their own: started, merged, kept and compared."""
