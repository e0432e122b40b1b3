"""Histories of what concurrent clients did, and whether they can be explained: see checker."""
