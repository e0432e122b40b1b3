"""Trunkline in other people's tests."""
