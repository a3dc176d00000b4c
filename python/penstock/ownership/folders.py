# SPDX-License-Identifier: Apache-2.0
"""Checks that a folder or file was created by Penstock, and removes it. Does not follow links or cross mounts."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import tempfile
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from penstock.ownership.mounts import mount_of, mounts_below, unmount

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

__all__ = [
    "LEASE",
    "NotOwned",
    "OwnedFolder",
    "check_parents",
    "identity_of",
    "lease_of",
    "leased",
    "remove_below",
    "remove_empty_folder",
    "remove_file",
    "remove_flat_folder",
    "remove_made",
    "temporary_folder",
]

LEASE = "lease.json"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# Maximum recursion depth of a removal, which limits open descriptors. Deeper folders are first moved to the top.
_MAX_DEPTH = 64
_MAX_LEASE_BYTES = 1 << 16


class NotOwned(PermissionError):
    """Penstock cannot prove that a path is its own. The path was left unchanged."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(errno.EPERM, text)
        self.text, self.hint = text, hint

    def __str__(self) -> str:
        return self.text


def check_parents(path: str) -> str:
    """Return the path with the links in its parent folders resolved; the last component is not resolved.

    Raises:
        NotOwned: Another user (not root) could replace a part of the path. Either a parent folder is world-writable
            without the sticky bit (for root, also group-writable), or a folder in a world-writable folder belongs to
            another user.
    """
    parent, name = os.path.split(os.path.abspath(path))
    real, us = os.path.realpath(parent), os.geteuid()
    for at in dict.fromkeys([*_prefixes(parent), *_prefixes(real)]):
        try:
            found, above = os.lstat(at), os.stat(os.path.dirname(at))
        except FileNotFoundError:
            continue
        loose = stat.S_IWOTH | (stat.S_IWGRP if us == 0 and found.st_gid != 0 else 0)
        if stat.S_ISDIR(found.st_mode) and found.st_mode & loose and not found.st_mode & stat.S_ISVTX:
            raise NotOwned(
                f"{at} is writable by other users (mode {stat.S_IMODE(found.st_mode):o}), who could replace {name} "
                "in it",
                f"run chmod go-w {at}, or use a folder that you own",
            )
        if above.st_mode & stat.S_IWOTH and found.st_uid not in (0, us):
            raise NotOwned(
                f"{at} belongs to user {found.st_uid} and is in a folder that all users can write to",
                "use a folder that you own",
            )
    return os.path.join(real, name)


def _prefixes(path: str) -> list[str]:
    """All prefixes of a path: `/a/b` gives `/`, `/a`, `/a/b`."""
    parts = [part for part in path.split("/") if part]
    return ["/" + "/".join(parts[:count]) for count in range(len(parts) + 1)]


class OwnedFolder:
    """A folder that belongs to this user and that no other user can write to. A descriptor holds the folder open.

    Every access to its content starts from the descriptor, so replacing the path by a link has no effect.
    """

    def __init__(self, path: str, *, is_private: bool = True) -> None:
        """Open the folder.

        Args:
            is_private: Require that no other user can write to the folder. False if the caller has another proof, such
                as the folder's identity.

        Raises:
            FileNotFoundError: The path does not exist.
            NotOwned: The path is a link or not a folder, belongs to another user, or is writable by other users.
        """
        self.path = os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(path))), os.path.basename(path))
        try:
            self.fd = os.open(self.path, _FOLDER)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise NotOwned(f"{path} is not a folder created by Penstock: it is a link or not a folder") from None
            raise
        try:
            found = os.fstat(self.fd)
            if found.st_uid != os.geteuid():
                raise NotOwned(f"{path} belongs to user {found.st_uid}, but the current user is {os.geteuid()}")
            if is_private and found.st_mode & _OTHERS_WRITE:
                raise NotOwned(f"{path} is writable by other users (mode {stat.S_IMODE(found.st_mode):o})")
            self._mount = mount_of(self.fd)
        except BaseException:
            os.close(self.fd)
            raise
        self._faults: list[OSError] = []
        self._moved = 0

    @classmethod
    def made(cls, path: str, *, is_private: bool = True) -> OwnedFolder:
        """Open the folder; create it first if the path does not exist."""
        with suppress(FileExistsError):
            os.mkdir(path, 0o700 if is_private else 0o777)
        return cls(path, is_private=is_private)

    def __enter__(self) -> OwnedFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor; safe to call twice."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode number, which two folders never share at the same time."""
        found = os.fstat(self.fd)
        return found.st_dev, found.st_ino

    def names(self) -> list[str]:
        """Names of the entries in the folder."""
        return os.listdir(self.fd)

    def folder(self, name: str) -> None:
        """Create a subfolder if it does not exist.

        Raises:
            NotOwned: The name is a link, a file or another user's folder.
        """
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self.fd)
        found = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise NotOwned(f"{self.path}/{name} is not a folder that Penstock created")

    def read(self, name: str) -> bytes | None:
        """Read a file in the folder that belongs to this user; None if it does not exist.

        Raises:
            NotOwned: The name is a link, not a file, or another user's file.
        """
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NotOwned(f"{self.path}/{name} is a link, and was not created by Penstock") from None
            raise
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise NotOwned(f"{self.path}/{name} is not a file that Penstock created")
            return os.read(fd, _MAX_LEASE_BYTES)
        finally:
            os.close(fd)

    def write(self, name: str, data: bytes, *, replaces: bool) -> bool:
        """Write a file atomically. Returns False and changes nothing if the file exists and must not be replaced."""
        part = f".{name}.{os.getpid()}.{os.urandom(4).hex()}"
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self.fd)
        try:
            with open(fd, "wb") as file:
                file.write(data)
            if replaces:
                os.rename(part, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
            else:
                os.link(part, name, src_dir_fd=self.fd, dst_dir_fd=self.fd, follow_symlinks=False)
        except FileExistsError:
            return False
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part, dir_fd=self.fd)
        return True

    def unmount(self, points: Sequence[str]) -> list[str]:
        """Unmount everything at or below the given subfolders; return the unmounted paths.

        Raises:
            NotOwned: Another place below this folder is a mount point. In this case, nothing is unmounted.
        """
        ours = tuple(f"{self.path}/{point}" for point in points)
        found = mounts_below(self.path)
        others = [path for path in found if not any(path == own or path.startswith(own + "/") for own in ours)]
        if others:
            raise NotOwned(
                f"{others[0]} is mounted below {self.path}, but not by Penstock",
                f"unmount it first: umount {others[0]}",
            )
        return [path for path in found if unmount(path)]

    def remove(self, keep: Collection[str] = ()) -> bool:
        """Remove the folder's content, and the folder itself if nothing remains in it; return whether the folder was
        removed.

        Args:
            keep: Names in the folder that are not removed.

        Raises:
            NotOwned: The folder contains a mount point. The mount is left; everything else is removed.
            OSError: The first failed removal; everything else is removed.
        """
        self._faults, moved = [], -1
        while self._moved != moved:
            moved = self._moved
            self._empty(self.fd, self.path, keep)
        if self._faults:
            raise self._faults[0]
        if self.names():
            return False
        with suppress(FileNotFoundError):
            found = os.lstat(self.path)
            # rmdir takes a path, which another process may have redirected in the meantime. In the worst case, it
            # removes another empty folder.
            if os.path.samestat(found, os.fstat(self.fd)):
                os.rmdir(self.path)
        return True

    def _empty(self, fd: int, path: str, keep: Collection[str] = (), depth: int = 0) -> None:
        with os.scandir(fd) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries if entry.name not in keep]
        for name, is_folder in found:
            try:
                if not is_folder:
                    os.unlink(name, dir_fd=fd)
                elif depth < _MAX_DEPTH:
                    self._empty_one(fd, name, f"{path}/{name}", depth + 1)
                else:
                    self._moved += 1
                    os.rename(name, f".removed-{os.getpid()}-{self._moved}", src_dir_fd=fd, dst_dir_fd=self.fd)
            except FileNotFoundError:
                continue  # another process has removed it in the meantime, possibly another Penstock command
            except OSError as error:
                # Remember the error, and continue with the next entry.
                error.filename = error.filename and f"{path}/{name}"
                self._faults.append(error)

    def _empty_one(self, fd: int, name: str, path: str, depth: int) -> None:
        inner = os.open(name, _FOLDER, dir_fd=fd)
        try:
            if mount_of(inner) != self._mount:
                raise NotOwned(
                    f"{path} is mounted below {self.path}, but not by Penstock", f"unmount it first: umount {path}"
                )
            self._empty(inner, path, depth=depth)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=fd)


def leased(path: str, name: str, lease: str = "") -> tuple[OwnedFolder, dict[str, Any]]:
    """Open a folder with a lease that states this pool name and path; return the folder and the lease.

    Args:
        lease: The required lease; by default, any lease is accepted.

    Raises:
        FileNotFoundError: The folder does not exist.
        NotOwned: The path is not an OwnedFolder, or `lease.json` is missing or states another name, path or lease.
    """
    folder = OwnedFolder(path)
    try:
        held = lease_of(folder)
        if held is None:
            raise NotOwned(f"{path} contains no pool lease", "remove the folder yourself if it is yours")
        if (held.get("name"), held.get("root", path)) != (name, path):
            raise NotOwned(f"{path} contains the lease of the pool `{held.get('name')}` at {held.get('root')}")
        if lease and held.get("lease") != lease:
            raise NotOwned(f"{path} contains the lease of another `pool up`")
    except BaseException:
        folder.close()
        raise
    return folder, held


def lease_of(folder: OwnedFolder) -> dict[str, Any] | None:
    """Return the lease in a folder; None if it is missing or cannot be parsed."""
    data = folder.read(LEASE)
    try:
        held = json.loads(data) if data else None
    except ValueError:
        return None
    return held if isinstance(held, dict) else None


@contextmanager
def temporary_folder(parent: str | None, prefix: str) -> Iterator[str]:
    """Context manager: create a new folder, and remove it at the end.

    Proof: this function created the folder, and has held its descriptor since then.
    """
    with OwnedFolder(tempfile.mkdtemp(prefix=prefix, dir=parent)) as folder:
        try:
            yield folder.path
        finally:
            with suppress(OSError):
                folder.remove()


def identity_of(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Return device and inode number of a path. A link is not followed."""
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def remove_made(path: str | os.PathLike[str], identity: tuple[int, int]) -> bool:
    """Remove a folder that this process created; return whether it was removed. Proof: its identity is unchanged."""
    try:
        with OwnedFolder(os.fspath(path), is_private=False) as folder:
            return folder.identity == identity and folder.remove()
    except OSError:
        return False


def remove_empty_folder(path: str | os.PathLike[str]) -> bool:
    """Remove an empty folder of this user; return whether it was removed."""
    try:
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return False
        os.rmdir(path)
    except OSError:  # missing, not empty, or no permission
        return False
    return True


def remove_flat_folder(path: str, pattern: str) -> bool:
    """Remove a folder that contains only files of this user whose names match `pattern`; return whether it was removed.

    Use this for folders that several processes of this user share. A folder with any other content is left unchanged.
    """
    try:
        folder = OwnedFolder(path)
    except (FileNotFoundError, NotOwned):
        return False
    with folder:
        for name in folder.names():
            found = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
            if not (re.fullmatch(pattern, name) and stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()):
                return False
        return folder.remove()


def remove_file(path: str | os.PathLike[str]) -> bool:
    """Remove a regular file of this user; return whether it existed.

    Raises:
        NotOwned: The path is a link, not a file, or another user's file.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise NotOwned(f"{os.fspath(path)} is not a file that Penstock created")
    with suppress(FileNotFoundError):
        os.unlink(path)
    return True


def remove_below(folder: str | os.PathLike[str], name: str) -> bool:
    """Remove the file `name` (`a/b/c`) below a folder without following links; return whether it existed.

    Raises:
        NotOwned: A component of `name` is a link.
    """
    *parts, last = name.split("/")
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            inner = os.open(part, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = inner
        os.unlink(last, dir_fd=fd)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise NotOwned(f"{os.fspath(folder)}/{name}: a component is a link or not a folder") from None
        raise
    finally:
        os.close(fd)
    return True
