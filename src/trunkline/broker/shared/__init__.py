"""Shared state: maps with compare-and-set and groups with views, each a topic of one partition and a fold of it."""
