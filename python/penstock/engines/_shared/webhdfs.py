# SPDX-License-Identifier: Apache-2.0
"""Access to a pool's objects in HDFS through WebHDFS, for a process on one of the pool's nodes.

Every wait has a timeout of a few seconds. If a DataNode does not respond, another copy is read. An object of one block
with a copy on this node can be read as a plain file (`fast_path`).
"""

from __future__ import annotations

import http.client
import json
import math
import time
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from penstock.atomic_file import PART_PREFIX
from penstock.engines._shared.folder_access import validated_name
from penstock.errors import Deadline, NoSpace, NotFound, ServerError, Unreachable
from penstock.protocols import Located

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.protocols import Pool

__all__ = ["HdfsAccess"]

# Timeout of a response. Without this timeout, a DataNode that hangs would block a reader for two minutes.
_WAIT_S = 5.0
# Timeout of one socket write. It is longer than `_WAIT_S`, because a slow disk delays the DataNode.
_WRITE_S = 30.0
_TRIES = 4
_CHUNK = 1 << 20


class HdfsAccess:
    """Access to the pool's objects. An object's name is its path below the HDFS root."""

    def __init__(self, pool: Pool, node: str) -> None:
        self._http: str = pool.facts["http"]
        self._nodes: dict[str, dict[str, Any]] = dict(pool.facts["nodes"])
        self._by_data = {facts["data"]: name for name, facts in self._nodes.items()}
        self._node = node
        self._copies = pool.copies

    def names(self, prefix: str = "") -> list[str]:
        """List the names with one request per folder, starting at the last folder of the prefix."""
        found, waiting = [], [prefix.rpartition("/")[0]]
        while waiting:
            folder = waiting.pop()
            try:
                answer = self._namenode_request("GET", folder, op="LISTSTATUS")
            except NotFound:
                continue
            for status in answer["FileStatuses"]["FileStatus"]:
                name = f"{folder}/{status['pathSuffix']}".lstrip("/") if status["pathSuffix"] else folder
                if status["type"] == "DIRECTORY":
                    waiting.append(name)
                elif name.startswith(prefix) and PART_PREFIX not in name:
                    found.append(name)
        return sorted(found)

    def put(self, name: str, source: Path) -> None:
        """Write the whole object under a temporary name, then rename it. If a DataNode fails, the write is retried.

        The NameNode assigns the first copy to the writer's own DataNode.
        """
        validated_name(name)
        size = source.stat().st_size
        folder = name.rpartition("/")[0]
        # The object is one block, so that `fast_path` works. HDFS requires a multiple of its checksum chunk size.
        block = max(1 << 20, math.ceil(size / (1 << 20)) << 20)
        for last in [False] * (_TRIES - 1) + [True]:
            part = f"{folder}/{PART_PREFIX}{uuid4().hex}".lstrip("/")
            try:
                self._namenode_request("PUT", folder, op="MKDIRS")
                where = self._namenode_request(
                    "PUT",
                    part,
                    op="CREATE",
                    noredirect="true",
                    overwrite="true",
                    replication=self._copies,
                    blocksize=block,
                )["Location"]
                self._send(where, source, size)
                done = self._namenode_request(
                    "PUT", part, op="RENAME", destination=f"/{name}", renameoptions="OVERWRITE"
                )
                # Without options, RENAME returns a boolean. With OVERWRITE, RENAME returns an empty body or an
                # exception.
                if done.get("boolean") is False:
                    raise ServerError(f"{name}: the NameNode could not rename the file")
            except (Unreachable, ServerError, Deadline):
                if last:
                    raise
                time.sleep(0.5)
            else:
                return

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Read from the copy that the NameNode ranks nearest. If its DataNode does not respond, read from another
        copy.
        """
        validated_name(name)
        shunned: list[str] = []
        trouble: Exception | None = None
        while True:
            query: dict[str, Any] = {"op": "OPEN", "offset": offset, "length": length, "noredirect": "true"}
            if shunned:
                query["excludedatanodes"] = ",".join(shunned)
            try:
                where = self._namenode_request("GET", name, **query)["Location"]
            except (ServerError, Unreachable) as error:  # no other DataNode has a copy
                if trouble is not None:
                    raise trouble from error
                if self._has_lost(name):
                    raise NotFound(f"{name}: all copies in the pool are lost", where=name) from error
                raise
            try:
                return self._fetch(where, length)
            except (Unreachable, Deadline, ServerError) as error:
                trouble = error
                place = urllib.parse.urlsplit(where).netloc
                if place in shunned or len(shunned) >= len(self._nodes):
                    raise
                shunned.append(self._data_of(where) or place)

    def locate(self, names: Sequence[str]) -> dict[str, list[Located]]:
        """Return the nodes that store each block of the objects, with one NameNode request per object."""
        return {
            name: [
                Located(block["startOffset"], block["block"]["numBytes"], tuple(self._holders(block)))
                for block in self._blocks(name)["locatedBlocks"]
            ]
            for name in names
        }

    def fast_path(self, name: str) -> Path | None:
        """Path of the finalized block file, if the object has one block and a copy on this node; else None."""
        blocks = self._blocks(name)["locatedBlocks"]
        if len(blocks) != 1 or self._node not in self._holders(blocks[0]):
            return None
        block = blocks[0]["block"]
        number = block["blockId"]
        folder = Path(self._nodes[self._node]["root"], "data/blocks/current", block["blockPoolId"], "current/finalized")
        path = folder / f"subdir{number >> 16 & 31}" / f"subdir{number >> 8 & 31}" / f"blk_{number}"
        try:
            return path if path.stat().st_size == block["numBytes"] else None
        except OSError:
            return None

    def mount_path(self, name: str) -> Path | None:  # noqa: ARG002
        """Return None, because the pool does not mount HDFS."""
        return None

    def delete(self, names: Sequence[str]) -> None:
        """Delete the objects with one request each."""
        for name in names:
            self._namenode_request("DELETE", validated_name(name), op="DELETE")

    # ------------------------------------------------------------ internals

    def _blocks(self, name: str) -> dict[str, Any]:
        answer: dict[str, Any] = self._namenode_request("GET", validated_name(name), op="GET_BLOCK_LOCATIONS")[
            "LocatedBlocks"
        ]
        return answer

    def _holders(self, block: dict[str, Any]) -> list[str]:
        places = (f"{place['ipAddr']}:{place['xferPort']}" for place in block["locations"])
        return [self._by_data[place] for place in places if place in self._by_data]

    def _has_lost(self, name: str) -> bool:
        return any(not self._holders(block) for block in self._blocks(name)["locatedBlocks"])

    def _data_of(self, location: str) -> str | None:
        """Transfer address of the DataNode in a redirect URL. The NameNode excludes DataNodes by this address."""
        host = urllib.parse.urlsplit(location).hostname
        mine = [data for data in self._by_data if data.rpartition(":")[0] == host]
        return mine[0] if len(mine) == 1 else None

    def _namenode_request(self, method: str, name: str, **query: Any) -> dict[str, Any]:
        """Send one request to the NameNode; return its JSON, or raise the matching error."""
        details = urllib.parse.urlencode({**query, "user.name": "penstock"})
        status, body = _request(method, self._http, f"/webhdfs/v1/{urllib.parse.quote(name)}?{details}", _WAIT_S)
        try:
            answer: dict[str, Any] = json.loads(body) if body else {}
        except ValueError:
            answer = {}
        if status in (200, 201, 307):
            return answer
        remote = answer.get("RemoteException", {})
        text = f"{name or '/'}: {remote.get('exception', status)}: {str(remote.get('message', '')).splitlines()[0][:300] if remote.get('message') else 'no message'}"
        if status == 404 or remote.get("exception") == "FileNotFoundException":
            raise NotFound(f"{name} is not in the pool", where=name)
        if "DSQuota" in text or "could only be written to 0" in text:
            raise NoSpace(f"{text}; no DataNode has enough space", where=name)
        raise ServerError(text, status=status, where=name)

    def _fetch(self, location: str, length: int) -> bytes:
        place = urllib.parse.urlsplit(location)
        status, body = _request("GET", place.netloc, _path_of(place), _WAIT_S, limit=length)
        if status != 200:
            raise ServerError(
                f"{place.netloc} returned status {status}: {body[:200].decode(errors='replace')}", status=status
            )
        return body

    def _send(self, location: str, source: Path, size: int) -> None:
        place = urllib.parse.urlsplit(location)
        connection = http.client.HTTPConnection(place.netloc, timeout=_WRITE_S, blocksize=_CHUNK)
        try:
            with source.open("rb") as body:
                connection.request("PUT", _path_of(place), body=body, headers={"Content-Length": str(size)})
                answer = connection.getresponse()
                details = answer.read(2000)
        except TimeoutError as error:
            raise Deadline(f"{place.netloc} accepted no data for {_WRITE_S:g} s", limit_s=_WRITE_S) from error
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{place.netloc}: {error or type(error).__name__}", where=place.netloc) from error
        finally:
            connection.close()
        if answer.status != 201:
            raise ServerError(
                f"{place.netloc} returned status {answer.status}: {details[:300].decode(errors='replace')}",
                status=answer.status,
            )


def _path_of(place: urllib.parse.SplitResult) -> str:
    # The NameNode's redirect URLs contain unquoted special characters, which HTTP does not allow.
    return f"{urllib.parse.quote(place.path, safe='/%+')}?{urllib.parse.quote(place.query, safe='=&%+/:')}"


def _request(method: str, place: str, path: str, wait_s: float, *, limit: int = 1 << 26) -> tuple[int, bytes]:
    """Send one HTTP request. Each socket wait is limited by `wait_s`, and the body by `limit`."""
    connection = http.client.HTTPConnection(place, timeout=wait_s)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        parts, left = [], max(limit, 4096)
        while left > 0 and (chunk := answer.read(min(left, _CHUNK))):
            parts.append(chunk)
            left -= len(chunk)
        return answer.status, b"".join(parts)
    except TimeoutError as error:
        raise Deadline(f"{place} did not respond within {wait_s:g} s", where=place, limit_s=wait_s) from error
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"{place}: {error or type(error).__name__}", where=place) from error
    finally:
        connection.close()
