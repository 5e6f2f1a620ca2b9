"""Decisions: values in, values out. Nothing here prints, and no terminal library is known here."""
