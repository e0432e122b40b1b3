"""Between brokers: gossip, membership, and the laboratory that shows that they do what the literature says."""
