"""Reports: the envelope of every document, errors, units, and the formats."""
