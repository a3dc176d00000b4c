# SPDX-License-Identifier: Apache-2.0
"""Ports for the servers that tests start: each stays the test's own from the choice to the end."""

import itertools
import os
import socket

_next = itertools.count(os.getpid() * 64)


def free_port() -> int:
    """A port of this machine that nobody listens on.

    It lies below those that the kernel gives to outgoing connections, and a process is given none twice: between the
    choice and the server's start nobody takes it.
    """
    while True:
        port = 10_000 + next(_next) % 20_000
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
