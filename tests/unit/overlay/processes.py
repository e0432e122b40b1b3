"""Machines in processes of their own, that send each other real datagrams: what is simulated, as it would run.

A node's address is its port on the loopback. Datagrams are not lost there as long as a receiver's buffer has room: a
script sends few.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from random import Random
from typing import Any, Protocol

from trunkline.clock import Clock, SystemClock
from trunkline.overlay.machine import Machine, Peer, Send

MAX_DATAGRAM_BYTES = 1 << 16
_BUFFER_BYTES = 1 << 20
_HOST = "127.0.0.1"


class Script(Protocol):
    """What a node is, does at first, and has found in the end."""

    def build(self, addresses: list[Peer], number: int, random: Random, clock: Clock) -> Machine[Any]: ...

    def begin(self, machine: Any, number: int) -> Sequence[Send[Any]]: ...

    def read(self, machine: Any) -> object: ...


def run_processes(count: int, script: Script, seed: int) -> list[Any]:
    """Let `count` nodes work until nothing is on its way any more; what the script reads off each."""
    wires = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    for wire in wires:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        wire.bind((_HOST, 0))
    addresses = [str(wire.getsockname()[1]) for wire in wires]
    context = multiprocessing.get_context("fork")
    links: list[Connection] = []
    children = []
    for number in range(count):
        ours, theirs = context.Pipe()
        child = context.Process(
            target=_node, args=(wires[number], addresses, number, script, seed, theirs), daemon=True
        )
        child.start()
        theirs.close()
        links.append(ours)
        children.append(child)
    try:
        before: list[tuple[int, int]] = []
        while True:
            states = []
            for link in links:
                link.send("state")
                states.append(link.recv())
            if states == before and sum(sent - got for sent, got in states) == 0:
                break
            before = states
        for link in links:
            link.send("end")
        return [link.recv() for link in links]
    finally:
        for child in children:
            child.kill()
            child.join()
        for wire in wires:
            wire.close()


def _node(wire: socket.socket, addresses: list[Peer], number: int, script: Script, seed: int, link: Connection) -> None:
    own, clock = addresses[number], SystemClock()
    sent = got = 0
    machine = script.build(addresses, number, Random(f"{seed}/{number}"), clock)

    def post(sends: Sequence[Send[Any]]) -> None:
        nonlocal sent
        sent += len(sends)
        for send in sends:
            wire.sendto(pickle.dumps((own, send.message)), (_HOST, int(send.to)))

    post(script.begin(machine, number))
    while True:
        next_ms = machine.next_ms()
        wait_s = None if next_ms is None else max(0.0, next_ms - clock.monotonic_ms()) / 1000
        ready = wait([wire, link], wait_s)
        if wire in ready:
            sender, message = pickle.loads(wire.recv(MAX_DATAGRAM_BYTES))
            got += 1
            post(machine.receive(sender, message))
        if link in ready:
            if link.recv() == "end":
                link.send(script.read(machine))
                os._exit(0)
            link.send((sent, got))
        post(machine.wake())
