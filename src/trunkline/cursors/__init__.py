"""Cursors: how readers move over the log. `stream` is the consumer group; `queue` leases records one by one."""
