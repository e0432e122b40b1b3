"""The experiments, one subject a module, and the list of them."""
