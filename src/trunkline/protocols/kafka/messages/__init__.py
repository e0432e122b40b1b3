"""Messages of the Kafka protocol, one generated module per API.

Nothing is imported here: a broker loads the modules of those APIs that its clients use (`apis.load`), since
all of them together take over a second.
"""
