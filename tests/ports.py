# SPDX-License-Identifier: Apache-2.0
"""Ports for the servers that tests start; a port is not reused between its choice and its use."""

import itertools
import os
import socket

_next = itertools.count(os.getpid() * 64)


def free_port() -> int:
    """A free port of this machine.

    It is below the range that the kernel uses for outgoing connections, and a process never gets the same port twice.
    So no other process takes it between the choice and the server's start.
    """
    while True:
        port = 10_000 + next(_next) % 20_000
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
