"""GPUs of this machine: which there are, what each layer calls them, and which are hidden."""
