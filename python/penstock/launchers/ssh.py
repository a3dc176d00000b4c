# SPDX-License-Identifier: Apache-2.0
"""`ssh`: runs commands on nodes over ssh with asyncssh. Keys, agent, jump hosts and ~/.ssh/config work as in OpenSSH.

A connection to a host that is not in known_hosts fails, and no setting can disable this check.

Settings: `nodes` (`h1,alice@h2:2222` or `@FILE`, one per line), `user`, `port`, `key`, `known_hosts`, `config`, `jump`
(`user@host:port`), `connect_s`, `python` (the nodes' interpreter, [python3]).
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shlex
import tempfile
import threading
import time
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from penstock.errors import ConfigError, Deadline, Denied, Interrupted, PenstockError, Unreachable, Unsupported
from penstock.launchers._remote import file_transfer
from penstock.launchers._shared.subprocess_launcher import (
    FAILURE_GRACE_S,
    WRAPPER_GRACE_S,
    captured,
    check_request,
    display_argv,
    exit_from_record,
    rank_argv,
    rank_options,
    sinks,
    split_records,
    stops_others,
    transfer_argv,
)
from penstock.plugins import parse_settings
from penstock.protocols import Exit, Node, RunRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    import asyncssh

    from penstock.launchers._shared.child import Sink

__all__ = ["SshLauncher", "launcher"]

_HOST = re.compile(r"(?:(?P<user>[^@\s]+)@)?(?P<host>[A-Za-z0-9_.:-]+|\[[0-9a-fA-F:]+\])")
_SETTINGS = {
    "nodes": str, "user": str, "port": int, "key": str, "known_hosts": str, "config": str, "jump": str, "connect_s": int,
    "python": str,
}  # fmt: skip
_CHUNK = 1 << 18
# Reads a Python program and its arguments from the first line of stdin, and runs it. The program reads the remaining
# lines.
_BOOTSTRAP = (
    "import base64,json,sys,zlib;"
    'text,*sys.argv[1:]=json.loads(zlib.decompress(base64.b64decode(open(0,"rb",0,closefd=False).readline())));exec(text)'
)


class SshLauncher:
    """Launcher with one ssh connection per node. Each connection stays open until `close`, and is reopened if it is
    lost.
    """

    def __init__(self, settings: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        found = parse_settings("launcher ssh", settings, _SETTINGS)
        self._nodes, self._ports, self._users = parse(found.get("nodes", ""))
        self._settings = found
        if "jump" in found:
            parse(found["jump"])
        self._home = Path(environment.get("HOME") or "/nonexistent")
        self._agent = environment.get("SSH_AUTH_SOCK", "")
        self._python = found.get("python", "python3")
        self._connect_s = found.get("connect_s", 10)
        self._connections: dict[str, asyncssh.SSHClientConnection] = {}
        self._jump: asyncssh.SSHClientConnection | None = None
        self._meeting: dict[str, asyncio.Lock] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-ssh", daemon=True)
        self._thread.start()
        self._is_closed = False

    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def line(self, request: RunRequest) -> list[list[str]]:
        check_request(request)
        return [
            ["ssh", self._destination(node), shlex.join(display_argv(rank_argv(self._python, options, request.argv)))]
            for node, options in rank_options(request)
        ]

    def run(self, request: RunRequest) -> list[Exit]:
        check_request(request)
        with tempfile.TemporaryFile() as held:
            held.write(request.stdin or b"")
            held.flush()
            return self._ranks(request, None if request.stdin is None else held)

    def copy(self, src: Path, dst: str, on: Sequence[Node], *, timeout_s: float) -> list[Exit]:
        request = RunRequest(transfer_argv(self._python, "receive", dst), on, timeout_s=timeout_s)
        check_request(request)
        with tempfile.TemporaryFile() as held:
            file_transfer.pack(str(src), held)
            return self._ranks(request, held)

    def fetch(self, src: str, dst: Path, on: Node, *, timeout_s: float) -> Exit:
        request = RunRequest(transfer_argv(self._python, "send", src), [on], timeout_s=timeout_s)
        [(node, options)] = rank_options(request)
        with tempfile.TemporaryFile() as held:
            ended: Exit = self._await(self._one(node, options, request, keep=held))
            if ended.code == 0:
                held.seek(0)
                file_transfer.unpack(held, str(dst))
            return ended

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True

        async def part() -> None:
            for connection in (*self._connections.values(), self._jump):
                if connection is not None:
                    connection.abort()
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self._await(part())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    # ------------------------------------------------------------ internals

    def _ranks(self, request: RunRequest, stdin: IO[bytes] | None) -> list[Exit]:
        async def all_of_them() -> list[Exit]:
            jobs = [
                asyncio.ensure_future(self._one(node, options, request, stdin=stdin))
                for node, options in rank_options(request)
            ]

            def stop_others(job: asyncio.Future[Exit]) -> None:
                if not job.cancelled() and job.exception() is None and stops_others(request, job.result().code):
                    for each in jobs:
                        self._loop.call_later(FAILURE_GRACE_S, each.cancel)

            for job in jobs:
                job.add_done_callback(stop_others)
            return list(await asyncio.gather(*jobs))

        ended: list[Exit] = self._await(all_of_them())
        return ended

    def _await(self, work: Awaitable[Any]) -> Any:
        async def wrapped() -> Any:
            return await work

        future = asyncio.run_coroutine_threadsafe(wrapped(), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C: the channels close, and the rank wrappers end their commands
            raise

    def _destination(self, node: Node) -> str:
        user = self._users.get(node.name) or self._settings.get("user")
        port = self._ports.get(node.name) or self._settings.get("port")
        return f"{user + '@' if user else ''}{node.address}{f':{port}' if port else ''}"

    async def _one(
        self,
        node: Node,
        options: dict[str, Any],
        request: RunRequest,
        *,
        stdin: IO[bytes] | None = None,
        keep: IO[bytes] | None = None,
    ) -> Exit:
        began, rank, limit_s = time.monotonic(), options["rank"], request.timeout_s
        out, err = sinks(request.on_line, node.name, rank)
        fault: PenstockError
        try:
            async with asyncio.timeout(limit_s + WRAPPER_GRACE_S):
                connection = await self._connected(node)
                await self._channel(connection, options, request, stdin, keep or out, err)
        except TimeoutError:
            # The rank wrapper on the node has the same deadline, so the command ends even if this machine cannot reach
            # the node.
            fault = Deadline(f"{node.name}: no response within {limit_s:g} s", where=node.name, limit_s=limit_s)
            return Exit(node.name, rank, None, seconds=time.monotonic() - began, fault=fault)
        except asyncio.CancelledError:
            fault = Interrupted(f"{node.name}: the command was stopped", where=node.name)
            return Exit(node.name, rank, None, captured(out), captured(err), time.monotonic() - began, fault)
        except PenstockError as error:
            return Exit(node.name, rank, None, seconds=time.monotonic() - began, fault=error)
        found, rest = split_records(captured(err))
        record = found[-1] if found else None
        return exit_from_record(node.name, rank, record, captured(out), rest, time.monotonic() - began, limit_s)

    async def _channel(
        self, connection: asyncssh.SSHClientConnection, options: dict[str, Any], request: RunRequest, stdin: IO[bytes] | None,
        out: Sink, err: Sink,
    ) -> None:  # fmt: skip
        import asyncssh

        # ssh has no argument list: the login shell parses one command string. csh cannot parse quoted newlines or `!`.
        # Therefore, the command string contains neither, and the arguments are sent as the first line of stdin.
        _, _, *items = rank_argv(self._python, {**options, "reads_env": True}, request.argv)
        packed = base64.b64encode(zlib.compress(json.dumps(items).encode()))
        line = shlex.join([self._python, "-c", _BOOTSTRAP])
        try:
            process = await connection.create_process(line, encoding=None)
        except (asyncssh.Error, OSError) as error:
            self._connections.pop(options["node"], None)
            raise Unreachable(
                f"{options['node']}: the session could not be opened: {error}", where=options["node"]
            ) from error
        async with process:
            process.stdin.write(packed + b"\n" + json.dumps(dict(request.env)).encode() + b"\n")
            feeding = asyncio.ensure_future(_feed(process, stdin))
            try:
                await asyncio.gather(_drain(process.stdout, out), _drain(process.stderr, err))
                await process.wait_closed()
            except asyncio.CancelledError:
                # sshd passes no signals to sessions of root. The end of the connection ends the rank wrapper, and the
                # next call opens a new connection.
                self._connections.pop(options["node"], None)
                connection.abort()
                raise
            except (asyncssh.Error, OSError) as error:
                # The node hangs, or its link is down (for example, keep-alives get no reply). The rank wrapper on the
                # node ends the command.
                self._connections.pop(options["node"], None)
                raise Unreachable(
                    f"{options['node']}: the connection was lost: {error}", where=options["node"]
                ) from error
            finally:
                feeding.cancel()

    async def _connected(self, node: Node) -> asyncssh.SSHClientConnection:
        async with self._meeting.setdefault(node.name, asyncio.Lock()):
            found = self._connections.get(node.name)
            if found is None or found.is_closed():
                found = self._connections[node.name] = await self._connect(node)
            return found

    async def _connect(self, node: Node) -> asyncssh.SSHClientConnection:
        jump = self._settings.get("jump")
        if not jump:
            return await self._dial(node, self._ports.get(node.name), self._users.get(node.name), None)
        # Open the connection to the jump host explicitly. If asyncssh opens it from a `user@host` string, asyncssh
        # ignores the launcher's keys and known hosts.
        [through], ports, users = parse(jump)
        async with self._meeting.setdefault(f"jump {jump}", asyncio.Lock()):
            if self._jump is None or self._jump.is_closed():
                try:
                    self._jump = await self._dial(through, ports.get(through.name), users.get(through.name), None)
                except PenstockError as error:
                    raise type(error)(
                        f"{node.name}: the connection to the jump host failed: {error}",
                        hint=error.hint,
                        where=node.name,
                    ) from error
        return await self._dial(node, self._ports.get(node.name), self._users.get(node.name), self._jump)

    async def _dial(
        self, node: Node, port: int | None, user: str | None, tunnel: asyncssh.SSHClientConnection | None
    ) -> asyncssh.SSHClientConnection:
        try:
            import asyncssh
        except ImportError:
            raise Unsupported(
                "the ssh launcher requires asyncssh, which is not installed", hint="pip install 'penstock[ssh]'"
            ) from None
        given = self._settings
        known = Path(given.get("known_hosts") or self._home / ".ssh/known_hosts")
        if not known.is_file():
            raise Denied(
                f"{node.name}: the host key is unknown, because {known} does not exist",
                where=node.name,
                hint=f"run ssh-keyscan {node.address} >> {known}, and compare the keys with the node's own",
            )
        config = Path(given.get("config") or self._home / ".ssh/config")
        options: dict[str, Any] = {"known_hosts": str(known), "config": [str(config)] if config.is_file() else []}
        if "config" in given and not config.is_file():
            raise ConfigError(f"launcher ssh: config = {config} does not exist")
        found = {"username": user or given.get("user"), "port": port or given.get("port"), "tunnel": tunnel}
        options |= {name: value for name, value in found.items() if value}
        if "key" in given:
            options["client_keys"] = [given["key"]]
        try:
            return await asyncssh.connect(
                node.address,
                agent_path=self._agent or None,
                connect_timeout=self._connect_s,
                login_timeout=self._connect_s,
                keepalive_interval=5,
                keepalive_count_max=3,
                **options,
            )
        except asyncssh.HostKeyNotVerifiable as error:
            raise Denied(
                f"{node.name}: {known} does not contain the host key: {error.reason}",
                where=node.name,
                hint="compare the key with the node's own before you add it, because another host may use this address",
            ) from error
        except asyncssh.PermissionDenied as error:
            raise Denied(
                f"{node.name}: the ssh keys were rejected: {error.reason}",
                where=node.name,
                hint="run ssh-copy-id, or choose a key with --set key=FILE",
            ) from error
        except (asyncssh.KeyImportError, FileNotFoundError, PermissionError) as error:
            raise Denied(f"{node.name}: a key cannot be read: {error}", where=node.name) from error
        except (asyncssh.Error, OSError) as error:
            number = getattr(error, "errno", None) or 0
            # asyncio replaces the system's error message with its own text; restore the system's message.
            why = os.strerror(number) if number > 0 else str(getattr(error, "strerror", None) or error)
            why = "no response" if isinstance(error, TimeoutError) else why
            raise Unreachable(f"{node.name}: {why}", where=node.name) from error


async def _drain(reader: asyncssh.SSHReader[bytes], sink: Sink) -> None:
    while chunk := await reader.read(_CHUNK):
        sink.write(chunk)


async def _feed(process: asyncssh.SSHClientProcess[bytes], stdin: IO[bytes] | None) -> None:
    at = 0
    try:
        while stdin is not None and (chunk := os.pread(stdin.fileno(), _CHUNK, at)):
            at += len(chunk)
            process.stdin.write(chunk)
            await process.stdin.drain()
        process.stdin.write_eof()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the command has closed its stdin


def parse(text: str) -> tuple[list[Node], dict[str, int], dict[str, str]]:
    """Parse `h1,alice@h2:2222` or a node file into nodes, with their ports and users.

    Raises:
        ConfigError: The text contains no node, contains a node twice, or an entry is not a host.
    """
    if text.startswith("@"):
        try:
            items = [line.partition("#")[0].strip() for line in Path(text[1:]).read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"nodes: {text[1:]} cannot be read: {error}") from error
    else:
        items = text.split(",")
    nodes: list[Node] = []
    ports: dict[str, int] = {}
    users: dict[str, str] = {}
    for item in filter(None, (item.strip() for item in items)):
        place, _, port = item.rpartition(":") if re.search(r"(?:^[^:]*|\]):\d+$", item) else (item, "", "")
        found = _HOST.fullmatch(place)
        if found is None or place.startswith("-") or (port and not 0 < int(port) < 65536):
            raise ConfigError(
                f"nodes: `{item}` is not a valid host",
                hint="write host, user@host or user@host:port, separated by commas",
            )
        # The port is part of the node's name, because several nodes may be one host with different ports.
        name = found["host"].strip("[]") + (f":{port}" if port else "")
        if any(node.name == name for node in nodes):
            raise ConfigError(f"nodes: {name} occurs twice")
        nodes.append(Node(name, found["host"].strip("[]")))
        if port:
            ports[name] = int(port)
        if found["user"]:
            users[name] = found["user"]
    if not nodes:
        raise ConfigError("launcher ssh: --nodes is missing", hint="give --nodes h1,h2 or --nodes @FILE")
    return nodes, ports, users


def launcher(settings: Mapping[str, Any], environment: Mapping[str, str]) -> SshLauncher:
    """Entry point `penstock.launchers: ssh`."""
    return SshLauncher(settings, environment)
