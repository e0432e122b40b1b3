"""Declarations of the Kafka messages, from which `messages/` is generated."""
