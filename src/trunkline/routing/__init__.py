"""Routing: where a publication goes. Pure data structures, no I/O, no clock; each protocol feeds them and acts on the answer."""
