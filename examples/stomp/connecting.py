"""What all examples share: where the broker is, and how a receiver runs."""

import os
import queue
import sys

import stomp


class Inbox(stomp.ConnectionListener):
    """Messages, receipts and errors as they come, to be taken by the main thread."""

    def __init__(self):
        self.messages = queue.Queue()
        self.receipts = queue.Queue()

    def on_message(self, frame):
        self.messages.put(frame)

    def on_receipt(self, frame):
        self.receipts.put(frame.headers["receipt-id"])

    def on_error(self, frame):
        print(frame.headers.get("message"), frame.body, file=sys.stderr, flush=True)
        os._exit(1)


def connect():
    host, _, port = os.environ.get("STOMP_ADDRESS", "127.0.0.1:61613").rpartition(":")
    connection = stomp.Connection12([(host, int(port))], vhost="/", heartbeats=(10_000, 10_000))
    inbox = Inbox()
    connection.set_listener("", inbox)
    connection.connect("guest", "guest", wait=True)
    return connection, inbox


def take_option(name):
    """Remove `--name VALUE` from the arguments and return the value, if it is there."""
    if name not in sys.argv:
        return None
    position = sys.argv.index(name)
    value = sys.argv[position + 1]
    del sys.argv[position : position + 2]
    return value


def receive(inbox, count):
    """Messages, until Ctrl-C or until there were so many."""
    print("ready", flush=True)
    handled = 0
    try:
        while count is None or handled < int(count):
            yield inbox.messages.get()
            handled += 1
    except KeyboardInterrupt:
        pass
