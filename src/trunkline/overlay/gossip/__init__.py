"""Gossip as a library: state machines without sockets, threads or a clock of their own."""
