"""The Python API: queues, publish/subscribe, streams, requests and transactions in a few calls.

    address       where a broker is: trunkline://user:password@host:port/vhost, `memory:` or a directory
    errors        what can go wrong, by name
    wire          a connection that comes back, and brings back what was consumed over it
    intake        consuming one queue, over whichever link there is
    connection    `t`: the asynchronous connection, from which everything else is had
    queue, message, subscription, stream, service, transaction      what it gives
    space, templates; shared_map; group, team_view                  state that processes share, asked for by `asking`
    bodies        values to bytes and back, by type hints
    faces         the same for code that is not asynchronous: each call runs on a loop in a thread of its own (`portal`)

There is one implementation, and it is asynchronous. Nothing is global: a connection owns its loop, its threads and its links.
"""
