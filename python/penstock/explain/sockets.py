# SPDX-License-Identifier: Apache-2.0
"""TCP sockets with the kernel's measurements of each connection, by netlink (sock_diag(7)). Needs no root.

The kernel answers for the network namespace of the caller only. Sockets of containers with their own network are
not seen.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import SystemFault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

__all__ = ["TcpSocket", "TcpSockets", "dump_request", "parse_messages"]

# include/uapi/linux/sock_diag.h, inet_diag.h, netlink.h and tcp.h of Linux 6.18.
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_INET_DIAG_INFO = 2
_ESTABLISHED, _SYN_SENT, _CLOSE_WAIT = 1, 2, 8
_STATES = 1 << _ESTABLISHED | 1 << _SYN_SENT | 1 << _CLOSE_WAIT

_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI48x")
# struct inet_diag_msg: family, state, timer, retrans; ports and addresses (network order), interface, cookie; expires,
# receive queue, send queue, uid, inode.
_MESSAGE = struct.Struct("!BBBB HH 16s16s 4x8x")
_MESSAGE_TAIL = struct.Struct("=IIIII")
_MESSAGE_BYTES = _MESSAGE.size + _MESSAGE_TAIL.size
_INODE = _HEADER.size + _MESSAGE_BYTES - 4
_ATTRIBUTE = struct.Struct("=HH")
# Offsets in struct tcp_info. Older kernels return a shorter structure, so each field is read only if it is present.
_RTT, _TOTAL_RETRANS, _BYTES_ACKED, _BYTES_RECEIVED, _DELIVERY_RATE = 68, 100, 120, 128, 160


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """One connection, with counters that start when the connection is opened.

    Attributes:
        inode: Number of the socket, as in `socket:[N]` of /proc/PID/fd.
        unread_bytes: Bytes that have arrived and that the program has not read.
        rtt_s: Smoothed round-trip time; 0 if not measured.
    """

    inode: int
    state: int
    local: tuple[str, int]
    remote: tuple[str, int]
    unread_bytes: int
    rtt_s: float = 0.0
    retransmits: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    delivery_rate_bytes_per_s: float = 0.0


def dump_request(family: int, sequence: int) -> bytes:
    """Build the request for all open TCP sockets of an address family."""
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, _STATES)
    return (
        _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST | _NLM_F_DUMP, sequence, 0) + body
    )


def parse_messages(data: bytes, inodes: AbstractSet[int] | None = None) -> tuple[list[TcpSocket], bool]:
    """Parse one datagram of an answer. Return its sockets, and whether it is the last datagram.

    Truncated messages and unknown attributes are skipped. With `inodes`, all other sockets are also skipped.

    Raises:
        OSError: The kernel refused the request.
    """
    found: list[TcpSocket] = []
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _flags, _sequence, _port = _HEADER.unpack_from(data, at)
        end = at + length
        if length < _HEADER.size or end > len(data):
            return found, True
        if kind == _NLMSG_DONE:
            return found, True
        if kind == _NLMSG_ERROR:
            number = -struct.unpack_from("=i", data, at + _HEADER.size)[0] if length >= _HEADER.size + 4 else 0
            raise OSError(number, os.strerror(number) if number > 0 else "netlink error")
        if kind == _SOCK_DIAG_BY_FAMILY and length >= _HEADER.size + _MESSAGE_BYTES:
            inode = int.from_bytes(data[at + _INODE : at + _INODE + 4], sys.byteorder)
            if inodes is None or inode in inodes:
                found.append(_socket(data[at + _HEADER.size : end]))
        at += (length + 3) & ~3
    return found, False


def _socket(message: bytes) -> TcpSocket:
    family, state, _timer, _retrans, sport, dport, source, dest = _MESSAGE.unpack_from(message)
    _expires, unread, _unsent, _uid, inode = _MESSAGE_TAIL.unpack_from(message, _MESSAGE.size)
    info = b""
    at = _MESSAGE_BYTES
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if length < _ATTRIBUTE.size:
            break
        if kind == _INET_DIAG_INFO:
            info = message[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3
    return TcpSocket(
        inode=inode,
        state=state,
        local=(_address(family, source), sport),
        remote=(_address(family, dest), dport),
        unread_bytes=unread,
        rtt_s=_number("=I", info, _RTT) / 1e6,
        retransmits=_number("=I", info, _TOTAL_RETRANS),
        received_bytes=_number("=Q", info, _BYTES_RECEIVED),
        sent_bytes=_number("=Q", info, _BYTES_ACKED),
        delivery_rate_bytes_per_s=float(_number("=Q", info, _DELIVERY_RATE)),
    )


def _number(kind: str, info: bytes, at: int) -> int:
    return int(struct.unpack_from(kind, info, at)[0]) if len(info) >= at + struct.calcsize(kind) else 0


def _address(family: int, packed: bytes) -> str:
    if family == socket.AF_INET:
        return str(ipaddress.IPv4Address(packed[:4]))
    address = ipaddress.IPv6Address(packed)
    return str(address.ipv4_mapped or address)


class TcpSockets:
    """Connection to the kernel that returns the open TCP sockets, as often as asked. Close it after use.

    Raises:
        SystemFault: The kernel does not offer sock_diag to this process.
    """

    def __init__(self) -> None:
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
            self._socket.settimeout(1.0)
        except OSError as error:
            raise SystemFault(f"TCP information is not available: {error.strerror}") from error
        self._sequence = 0

    def read(self, inodes: AbstractSet[int] | None = None) -> Iterator[TcpSocket]:
        """Yield the open sockets of both address families; with `inodes`, only these.

        Raises:
            OSError: The kernel refused the request.
        """
        for family in (socket.AF_INET, socket.AF_INET6):
            self._sequence += 1
            self._socket.send(dump_request(family, self._sequence))
            is_last = False
            while not is_last:
                found, is_last = parse_messages(self._socket.recv(1 << 17), inodes)
                yield from found

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
