# SPDX-License-Identifier: Apache-2.0
"""Checks the connection to a store, one property after the other: endpoint, proxy, DNS, TCP, TLS, clock, region,
credentials, permissions and packet size. Each check ends with ok, warn, fail or skip, and states what to do next.
"""

from __future__ import annotations

import base64
import datetime as dt
import os
import socket
import ssl
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, unquote, urlsplit

import msgspec

from penstock import _native
from penstock.bench.page_cache import file_system_of
from penstock.errors import ConfigError, Deadline, NotFound, PenstockError, Unreachable, Unsupported, redact
from penstock.local_paths import local_path
from penstock.probe.credentials import source_of
from penstock.probe.endpoint import Endpoint, endpoint_of
from penstock.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from urllib.parse import SplitResult

__all__ = ["Check", "Doctor"]

State = Literal["ok", "warn", "fail", "skip"]

# The sum of all time limits: DNS, 4 addresses, 3 answers (proxy, TLS, HEAD), 3 requests (list, head, read) and the
# large read. That is 10 + 4 x 5 + 3 x 8 + 3 x 15 + 15 = 114 s.
_DNS_S, _CONNECT_S, _ANSWER_S, _STORE_S, _LARGE_S = 10.0, 5.0, 8.0, 15.0, 15.0
_MAX_ADDRESSES = 4
_SLOW_DNS_S = 1.0
_WARN_SKEW_S = 30.0
# S3 and Azure refuse a request whose signed time differs from their clock by more than 15 minutes.
_MAX_SKEW_S = 15 * 60.0
_WARN_CERTIFICATE_S = 14 * 86400.0
_WARN_EXPIRY_S = 900.0
_LARGE_BYTES = 1 << 20
_MIN_LARGE_BYTES = 64 << 10
# Smaller path MTUs are unusual: IPv6 permits 1,280 bytes or more, and tunnels have 1,360 to 1,480.
_MIN_MTU = 1280
_MAX_HEAD_BYTES = 65_536


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one check. `hint` starts with a verb, and is empty if nothing is to be done."""

    name: str
    state: State
    text: str
    hint: str = ""
    facts: dict[str, Any] = {}


class _TcpInfo(msgspec.Struct, frozen=True):
    """Fields of the kernel's `struct tcp_info` (linux/tcp.h): segment size and path MTU in bytes, and round-trip time."""

    send_mss: int
    path_mtu: int
    rtt_s: float


class Doctor:
    """Runs the checks of one URL.

    Args:
        variables: Environment variables.
        timeout_scale: Factor on all time limits, whose sum is below 2 minutes.
        on_check: Called with each check when it is done.
    """

    def __init__(
        self,
        url: str,
        variables: Mapping[str, str],
        *,
        timeout_scale: float = 1.0,
        on_check: Callable[[Check], None] = lambda _check: None,
    ) -> None:
        self.url, self.variables, self._scale, self._on_check = url, variables, timeout_scale, on_check
        self.checks: list[Check] = []
        self._socket: socket.socket | None = None
        self._info: _TcpInfo | None = None

    def run(self) -> list[Check]:
        """Run all checks. A check that depends on a failed check is skipped.

        Raises:
            ConfigError: The scheme of the URL is not supported.
        """
        try:
            endpoint = endpoint_of(self.url, self.variables)
        except ConfigError as error:
            if error.where == "URL":
                raise
            self._add("endpoint", "fail", str(error), hint=error.hint or "correct the variable")
            return self.checks
        if endpoint.cloud == "file":
            self._path(Path(local_path(self.url)))
            return self.checks
        origin = "the cloud's own" if endpoint.is_default else f"from {endpoint.origin}"
        self._add("endpoint", "ok", f"{endpoint.shown}{endpoint.base}, {origin}", endpoint=endpoint.shown)
        try:
            self._network(endpoint)
        finally:
            if self._socket is not None:
                self._socket.close()
        if endpoint.cloud in ("s3", "az", "gs"):
            self._credentials(endpoint.cloud)
        is_reached = all(check.state != "fail" for check in self.checks if check.name in ("dns", "tcp", "tls"))
        if is_reached:
            self._permissions(endpoint)
        else:
            self._add("list", "skip", "the store cannot be reached")
            self._add("read", "skip", "the store cannot be reached")
        return self.checks

    def _add(self, name: str, state: State, text: str, *, hint: str = "", **facts: Any) -> None:
        check = Check(name=name, state=state, text=redact(text), hint=redact(hint), facts=facts)
        self.checks.append(check)
        self._on_check(check)

    # --- network ---

    def _network(self, endpoint: Endpoint) -> None:
        host, port = endpoint.host, endpoint.port
        set_ = sorted(name for name in self.variables if name.lower().endswith("_proxy") and self.variables[name])
        if endpoint.proxy:
            parts = _proxy_parts(endpoint)
            host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
            self._add(
                "proxy",
                "ok",
                f"requests go through {host}:{port} ({', '.join(set_)})",
                hint=f"add {endpoint.host} to NO_PROXY for a direct connection",
                proxy=f"{host}:{port}",
            )
        else:
            why = f"; {', '.join(set_)} do not apply to {endpoint.host}" if set_ else ""
            self._add("proxy", "ok", f"none, the connection is direct{why}")
        addresses = self._dns(host, port)
        if not addresses:
            self._add("tcp", "skip", "no address")
        if not addresses or not self._tcp(host, port, addresses, is_proxy=endpoint.proxy is not None):
            for name in ("tls", "clock", "region"):
                self._add(name, "skip", "no connection")
            return
        if endpoint.scheme == "https" and not self._tls(endpoint):
            for name in ("clock", "region"):
                self._add(name, "skip", "no TLS session")
            return
        if endpoint.scheme == "http":
            self._add(
                "tls",
                "ok" if endpoint.is_loopback else "warn",
                "not used: plain HTTP" + (" on this machine" if endpoint.is_loopback else " to another machine"),
                hint="" if endpoint.is_loopback else "use https; signatures and data can be read on the way",
            )
        self._clock_and_region(endpoint)

    def _dns(self, host: str, port: int) -> list[tuple[Any, ...]]:
        found: list[Any] = []

        def look_up() -> None:
            try:
                found.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            except (OSError, UnicodeError) as error:
                found.append(error)

        limit_s, began_s = _DNS_S * self._scale, time.monotonic()
        # getaddrinfo cannot be interrupted, so a resolver that does not answer is left behind in its thread.
        thread = threading.Thread(target=look_up, name="penstock-doctor-dns", daemon=True)
        thread.start()
        thread.join(limit_s)
        took_s = time.monotonic() - began_s
        if not found:
            self._add(
                "dns", "fail", f"{host}: no answer within {limit_s:g} s", hint="check the servers in /etc/resolv.conf"
            )
            return []
        if isinstance(found[0], Exception):
            self._add(
                "dns",
                "fail",
                f"{host}: {getattr(found[0], 'strerror', None) or found[0]}",
                hint="check the host name, the region in it, and /etc/resolv.conf",
            )
            return []
        names = list(dict.fromkeys(str(one[4][0]) for one in found))
        slow = took_s > _SLOW_DNS_S * self._scale
        self._add(
            "dns",
            "warn" if slow else "ok",
            f"{host}: {', '.join(names[:_MAX_ADDRESSES])} in {format_seconds(took_s)}",
            hint="check /etc/resolv.conf: each new connection may wait for this" if slow else "",
            seconds=took_s,
            addresses=names,
        )
        return found

    def _tcp(self, host: str, port: int, addresses: list[tuple[Any, ...]], *, is_proxy: bool) -> bool:
        reached, lost, times = [], [], []
        for family, kind, protocol, _, address in addresses[:_MAX_ADDRESSES]:
            connection = socket.socket(family, kind, protocol)
            connection.settimeout(_CONNECT_S * self._scale)
            began_s = time.monotonic()
            try:
                connection.connect(address)
            except OSError as error:
                connection.close()
                why = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error))
                lost.append(f"{address[0]}: {why}")
                continue
            times.append(time.monotonic() - began_s)
            reached.append(address[0])
            if self._socket is None:
                self._socket = connection
            else:
                connection.close()
        what = "the proxy " if is_proxy else ""
        if not reached:
            silent = any(text.endswith("no answer") for text in lost)
            hint = (
                f"ask for a firewall rule that allows port {port}, or set the proxy"
                if silent
                else f"check that {what}{host} listens on port {port}"
            )
            self._add("tcp", "fail", f"{what}port {port}: {'; '.join(lost)}", hint=hint)
            return False
        self._add(
            "tcp",
            "warn" if lost else "ok",
            f"{what}port {port}: connected in {format_seconds(min(times))}"
            + (f"; {len(lost)} of {len(lost) + len(reached)} addresses failed ({lost[0]})" if lost else ""),
            hint="remove the addresses that fail, or ask for a route to them" if lost else "",
            seconds=min(times),
        )
        return True

    def _tls(self, endpoint: Endpoint) -> bool:
        assert self._socket is not None, "TCP was checked before"
        bundle = self.variables.get("AWS_CA_BUNDLE") or None
        try:
            context = ssl.create_default_context(cafile=bundle if endpoint.cloud == "s3" else None)
        except (OSError, ssl.SSLError) as error:
            self._add("tls", "fail", f"AWS_CA_BUNDLE: {error}", hint="set AWS_CA_BUNDLE to a PEM file")
            return False
        self._socket.settimeout(_ANSWER_S * self._scale)
        try:
            if endpoint.proxy is not None:
                self._tunnel(endpoint)
            secured = context.wrap_socket(self._socket, server_hostname=endpoint.host)
        except ssl.SSLCertVerificationError as error:
            self._add(
                "tls",
                "fail",
                f"certificate of {endpoint.host}: {error.verify_message}",
                hint="set AWS_CA_BUNDLE if a proxy of your network signs certificates; check the clock if it has expired",
            )
            return False
        except (OSError, ssl.SSLError) as error:
            self._add(
                "tls",
                "fail",
                f"{endpoint.host}: {error.strerror or error}",
                hint=f"check that port {endpoint.port} speaks TLS, and that the proxy allows CONNECT",
            )
            return False
        self._socket = secured
        certificate = secured.getpeercert() or {}
        ends_s = ssl.cert_time_to_seconds(str(certificate["notAfter"])) if "notAfter" in certificate else None
        left_s = None if ends_s is None else ends_s - time.time()
        soon = left_s is not None and left_s < _WARN_CERTIFICATE_S
        until = f", certificate until {certificate['notAfter']}" if ends_s is not None else ""
        self._add(
            "tls",
            "warn" if soon else "ok",
            f"{secured.version()}{until}",
            hint="renew the server's certificate" if soon else "",
        )
        return True

    def _tunnel(self, endpoint: Endpoint) -> None:
        assert self._socket is not None
        target = endpoint.host_and_port
        login = _proxy_login(endpoint)
        self._socket.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{login}\r\n".encode())
        status, _ = _head_of(self._socket)
        if status != 200:
            raise ConnectionError(0, f"the proxy answered CONNECT with HTTP {status}")

    def _clock_and_region(self, endpoint: Endpoint) -> None:
        """Send one unsigned request. The answer contains the date of the store and, from S3, the region of the
        bucket.
        """
        assert self._socket is not None
        path = quote(endpoint.base or "/", safe="/%")
        target, login = path, ""
        if endpoint.proxy and endpoint.scheme == "http":
            target, login = f"{endpoint.shown}{path}", _proxy_login(endpoint)
        request = (
            f"HEAD {target} HTTP/1.1\r\nHost: {endpoint.authority}\r\n{login}"
            "Connection: close\r\nUser-Agent: penstock\r\n\r\n"
        )
        self._socket.settimeout(_ANSWER_S * self._scale)
        sent_s = time.time()
        try:
            self._socket.sendall(request.encode())
            status, headers = _head_of(self._socket)
        except (OSError, ValueError) as error:
            self._add(
                "clock",
                "fail",
                f"{endpoint.shown} did not answer a HEAD request: {getattr(error, 'strerror', None) or error}",
                hint="check that the endpoint is an object store",
            )
            self._add("region", "skip", "no answer")
            return
        came_s = time.time()
        self._info = _tcp_info(self._socket)
        self._clock(headers.get("date"), sent_s, came_s)
        if endpoint.cloud == "s3":
            self._region(endpoint, status, headers)

    def _clock(self, date: str | None, sent_s: float, came_s: float) -> None:
        from email.utils import parsedate_to_datetime

        try:
            theirs_s = parsedate_to_datetime(date or "").timestamp()
        except ValueError:
            self._add("clock", "warn", "the store sent no date", hint="check the clock with timedatectl")
            return
        # The header states whole seconds, so the store's time is half a second later on average.
        skew_s = (sent_s + came_s) / 2 - (theirs_s + 0.5)
        size_s = abs(skew_s) if abs(skew_s) > 1.0 + (came_s - sent_s) else 0.0
        side = "ahead of" if skew_s > 0 else "behind"
        text = "agrees with the store" if not size_s else f"this machine is {format_seconds(size_s)} {side} the store"
        state: State = "fail" if size_s >= _MAX_SKEW_S else "warn" if size_s >= _WARN_SKEW_S else "ok"
        refuses = "; stores refuse signatures whose time differs by 15 min or more" if state != "ok" else ""
        self._add(
            "clock",
            state,
            text + refuses,
            hint="set the clock: timedatectl set-ntp true" if state != "ok" else "",
            skew_s=skew_s if size_s else 0.0,
        )

    def _region(self, endpoint: Endpoint, status: int, headers: Mapping[str, str]) -> None:
        is_at = headers.get("x-amz-bucket-region")
        ours = f"{endpoint.region} ({endpoint.region_from})"
        if is_at is None:
            state: State = "fail" if status in (301, 307) else "ok"
            where = headers.get("location", "")
            text = (
                f"{ours}; the store answered HTTP {status} to {where}"
                if state == "fail"
                else f"{ours}; the store states none"
            )
            self._add("region", state, text, hint="set AWS_REGION to the bucket's region" if state == "fail" else "")
        elif is_at == endpoint.region:
            self._add("region", "ok", f"{ours}, as the bucket", region=is_at)
        else:
            self._add(
                "region",
                "fail",
                f"the bucket is in {is_at}, but requests are signed for {ours}",
                hint=f"export AWS_REGION={is_at}",
                region=is_at,
            )

    # --- identity and permissions ---

    def _credentials(self, cloud: str) -> None:
        source = source_of(cloud, self.variables)
        if source.problem:
            self._add(
                "credentials",
                "fail",
                f"{source.member + ': ' if source.member else ''}{source.problem}",
                hint=source.hint,
            )
            return
        if source.expires is None:
            self._add("credentials", "ok", source.member, member=source.member)
            return
        left_s = (source.expires - dt.datetime.now(dt.UTC)).total_seconds()
        when = source.expires.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        if left_s <= 0:
            text, state = f"{source.member}: expired at {when}", "fail"
        else:
            text, state = f"{source.member}, until {when}", "warn" if left_s < _WARN_EXPIRY_S else "ok"
        self._add(
            "credentials",
            state,  # type: ignore[arg-type] # one of the states above
            text,
            hint=(source.hint or "renew the credentials") if state != "ok" else "",
            member=source.member,
            expires=when,
        )

    def _permissions(self, endpoint: Endpoint) -> None:
        found: list[tuple[bytes, int]] = []
        try:
            files = _native.Files(self.url, dict(self.variables), timeout_s=_STORE_S * self._scale)
            listed = files.described(b"", most=50)
            found = [(name, size) for name, size, _, _ in listed]
            text = f"{len(found)} objects seen below the URL" if found else "nothing is below the URL"
            self._add("list", "ok" if found else "warn", text, hint="" if found else "check the prefix in the URL")
        except Unsupported:
            self._add("list", "skip", "the store has no listing")
            found = [(b"", -1)]
        except NotFound as error:
            self._add("list", "fail", str(error), hint="check the name of the bucket and the prefix")
        except PenstockError as error:
            self._add("list", "fail", str(error), hint=error.hint or self._advice(error, "list"))
            if endpoint.key and isinstance(error, PermissionError):
                found = [(b"", -1)]  # reading one object may be allowed without a listing
        if not found:
            self._add("read", "skip", "no object to read")
            return
        self._read(found)

    def _read(self, found: list[tuple[bytes, int]]) -> None:
        name, size = max(found, key=lambda one: min(one[1], _LARGE_BYTES))
        shown = name.decode(errors="replace") or self.url
        try:
            files = _native.Files(self.url, dict(self.variables), timeout_s=_STORE_S * self._scale)
            if size < 0:
                size = files.head(name)[1]
            began_s = time.monotonic()
            files.read(name, [(0, min(1, size))])
            took_s = time.monotonic() - began_s
        except PenstockError as error:
            self._add("read", "fail", str(error), hint=error.hint or self._advice(error, "read"))
            return
        self._add("read", "ok", f"{shown}: first byte in {format_seconds(took_s)}", seconds=took_s)
        self._packets(name, size)

    def _packets(self, name: bytes, size: int) -> None:
        """Read enough bytes to fill many packets. If this read stalls although a small read works, full packets are
        lost on the way.
        """
        info = self._info
        facts: dict[str, Any] = (
            {} if info is None else {"send_mss": info.send_mss, "path_mtu": info.path_mtu, "rtt_s": info.rtt_s}
        )
        text = "" if info is None else f"path MTU {info.path_mtu:,} bytes, MSS {info.send_mss:,}, "
        if size < _MIN_LARGE_BYTES:
            self._add("mtu", "skip", f"{text}no object of {_MIN_LARGE_BYTES:,} bytes to read", **facts)
            return
        want = min(size, _LARGE_BYTES)
        limit_s, began_s = _LARGE_S * self._scale, time.monotonic()
        try:
            files = _native.Files(self.url, dict(self.variables), timeout_s=limit_s)
            files.read(name, [(0, want)])
        except (Deadline, Unreachable):
            self._add(
                "mtu",
                "fail",
                f"{text}a read of {want:,} bytes stalled for {format_seconds(limit_s)}, but one of 1 byte was answered: "
                "full packets seem to be lost on the way (MTU black hole)",
                hint="try a smaller MTU: ip link set dev DEVICE mtu 1280; or sysctl net.ipv4.tcp_mtu_probing=1",
                **facts,
            )
            return
        except PenstockError as error:
            self._add("mtu", "warn", f"{text}a large read failed: {error}", hint=error.hint or "", **facts)
            return
        rate = format_bytes(want / max(time.monotonic() - began_s, 1e-9))
        small = info is not None and 0 < info.path_mtu < _MIN_MTU
        self._add(
            "mtu",
            "warn" if small else "ok",
            f"{text}{want:,} bytes at {rate}/s",
            hint="look for a tunnel on the way: the packets are smaller than IPv6 allows" if small else "",
            **facts,
        )

    def _advice(self, error: PenstockError, what: str) -> str:
        if isinstance(error, PermissionError):
            return f"ask for the permission to {what} objects, and check the credentials above"
        if isinstance(error, TimeoutError | ConnectionError):
            return "try again; if it persists, check the proxy and the firewall"
        return "correct the URL or the variable in the message" if isinstance(error, ConfigError) else ""

    # --- paths ---

    def _path(self, path: Path) -> None:
        if not path.exists():
            self._add("path", "fail", f"{path} does not exist", hint="check the path, or mount it")
            return
        kind = file_system_of(path) or "unknown"
        self._add("path", "ok", f"{path}: {'folder' if path.is_dir() else 'file'} on {kind}", file_system=kind)
        readable = os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0))
        self._add(
            "read",
            "ok" if readable else "fail",
            "readable" if readable else f"{path} is not readable by this user",
            hint="" if readable else f"ask the owner: chmod a+rX {path}",
        )
        place = path if path.is_dir() else path.parent
        room = os.statvfs(place)
        free = room.f_bavail * room.f_frsize
        self._add(
            "space",
            "ok" if free > 1 << 30 else "warn",
            f"{format_bytes(free)} free",
            hint="" if free > 1 << 30 else "free some space before you stage to it",
        )
        may_drop = os.access("/proc/sys/vm/drop_caches", os.W_OK)
        self._add(
            "page cache",
            "ok" if may_drop else "warn",
            "can be dropped" if may_drop else "cannot be dropped by this user, so benchmarks need O_DIRECT",
            hint="" if may_drop else "run benchmarks as root, or with --direct",
        )


def _proxy_parts(endpoint: Endpoint) -> SplitResult:
    proxy = endpoint.proxy or ""
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def _proxy_login(endpoint: Endpoint) -> str:
    """Header line with the proxy's credentials (RFC 7617), as the store layer sends it; empty without credentials."""
    parts = _proxy_parts(endpoint)
    if parts.username is None:
        return ""
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"Proxy-Authorization: Basic {base64.b64encode(login.encode()).decode()}\r\n"


def _head_of(connection: socket.socket) -> tuple[int, dict[str, str]]:
    """Status and headers of a response, names in lower case.

    Raises:
        ValueError: The answer is not HTTP.
        OSError: No answer, or the connection ended.
    """
    raw = b""
    while b"\r\n\r\n" not in raw:
        got = connection.recv(4096)
        if not got or len(raw) > _MAX_HEAD_BYTES:
            break
        raw += got
    lines = raw.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    words = lines[0].split(" ", 2)
    if not lines[0].startswith("HTTP/") or len(words) < 2 or not words[1].isdigit():
        raise ValueError("the connection ended without an answer" if not raw else "the answer is not HTTP")
    pairs = (line.partition(":") for line in lines[1:])
    return int(words[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


def _tcp_info(connection: socket.socket) -> _TcpInfo | None:
    """TCP_INFO of a connection: after eight bytes of flags come 32-bit fields (linux/tcp.h); None if unsupported."""
    try:
        raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        fields = struct.unpack("=24I", raw[8:104])
    except (OSError, struct.error, AttributeError):
        return None
    return _TcpInfo(send_mss=fields[2], path_mtu=fields[13], rtt_s=fields[15] / 1e6)
