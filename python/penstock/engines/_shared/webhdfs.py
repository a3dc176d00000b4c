# SPDX-License-Identifier: Apache-2.0
"""Objects of a pool in HDFS through WebHDFS, for a process on one of its nodes.

Every wait ends in seconds; if a copy does not answer, another is read. Objects of one block with a copy on this node
are plain files: `fast_path`.
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
from penstock.engines._shared.folder import validated_name
from penstock.errors import Deadline, NoSpace, NotFound, ServerError, Unreachable
from penstock.protocols import Located

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.protocols import Pool

__all__ = ["HdfsAccess"]

# Timeout of an answer. A DataNode that hangs would otherwise block a reader for two minutes.
_WAIT_S = 5.0
# Timeout of one socket write: a disk may be slow, but not silent.
_WRITE_S = 30.0
_TRIES = 4
_CHUNK = 1 << 20


class HdfsAccess:
    """Objects of the pool; their names are paths below the root of its HDFS."""

    def __init__(self, pool: Pool, node: str) -> None:
        self._http: str = pool.facts["http"]
        self._nodes: dict[str, dict[str, Any]] = dict(pool.facts["nodes"])
        self._by_data = {facts["data"]: name for name, facts in self._nodes.items()}
        self._node = node
        self._copies = pool.copies

    def names(self, prefix: str = "") -> list[str]:
        """One listing per folder, starting at the last folder of the prefix."""
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
        """Write the whole object under a temporary name, then rename; starts again if a DataNode fails. The NameNode
        gives the first copy to the writer's own DataNode.
        """
        validated_name(name)
        size = source.stat().st_size
        folder = name.rpartition("/")[0]
        # One block, so that its node can read it as a file; HDFS requires a multiple of its checksum chunk.
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
                # Without options HDFS answers with a boolean; with OVERWRITE it answers with nothing, or an exception.
                if done.get("boolean") is False:
                    raise ServerError(f"{name}: the NameNode refused to rename it")
            except (Unreachable, ServerError, Deadline):
                if last:
                    raise
                time.sleep(0.5)
            else:
                return

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Read from the copy that the NameNode ranks nearest; if it does not answer in seconds, from the others."""
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
                    raise NotFound(f"{name}: no copy of it is left in the pool", where=name) from error
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
        """One request to the NameNode per object."""
        return {
            name: [
                Located(block["startOffset"], block["block"]["numBytes"], tuple(self._holders(block)))
                for block in self._blocks(name)["locatedBlocks"]
            ]
            for name in names
        }

    def fast_path(self, name: str) -> Path | None:
        """File of the finalized block, for an object of one block with a copy on this node."""
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
        """None: HDFS has no mount."""
        return None

    def delete(self, names: Sequence[str]) -> None:
        """One request per name."""
        for name in names:
            self._namenode_request("DELETE", validated_name(name), op="DELETE")

    # ------------------------------------------------------------ how

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
        """Transfer address of a DataNode, by which the NameNode excludes it."""
        host = urllib.parse.urlsplit(location).hostname
        mine = [data for data in self._by_data if data.rpartition(":")[0] == host]
        return mine[0] if len(mine) == 1 else None

    def _namenode_request(self, method: str, name: str, **query: Any) -> dict[str, Any]:
        """One request to the NameNode."""
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
            raise ServerError(f"{place.netloc} answered {status}: {body[:200].decode(errors='replace')}", status=status)
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
                f"{place.netloc} answered {answer.status}: {details[:300].decode(errors='replace')}",
                status=answer.status,
            )


def _path_of(place: urllib.parse.SplitResult) -> str:
    # The NameNode does not quote special letters, which HTTP does not accept.
    return f"{urllib.parse.quote(place.path, safe='/%+')}?{urllib.parse.quote(place.query, safe='=&%+/:')}"


def _request(method: str, place: str, path: str, wait_s: float, *, limit: int = 1 << 26) -> tuple[int, bytes]:
    """One HTTP request; each wait and the whole are bounded."""
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
        raise Deadline(f"{place} did not answer within {wait_s:g} s", where=place, limit_s=wait_s) from error
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"{place}: {error or type(error).__name__}", where=place) from error
    finally:
        connection.close()
