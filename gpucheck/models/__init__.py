"""Values that the layers hand to one another: standard library only, no behaviour of their own."""
