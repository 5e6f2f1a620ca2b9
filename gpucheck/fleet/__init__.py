"""Fleet: the documents of many machines read together, compared and judged."""
