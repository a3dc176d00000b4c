# SPDX-License-Identifier: Apache-2.0
"""Folders and files: which are ours, and how one of ours is removed. No link is followed, and no mount is crossed."""

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
# Folders nested deeper than this are moved up before they are emptied: neither descriptors nor recursion run out.
_MAX_DEPTH = 64
_MAX_LEASE_BYTES = 1 << 16


class NotOwned(PermissionError):
    """It is not provably ours, and was left as it is."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(errno.EPERM, text)
        self.text, self.hint = text, hint

    def __str__(self) -> str:
        return self.text


def check_parents(path: str) -> str:
    """The path with its parents' links resolved; the last component stays as it is.

    Raises:
        NotOwned: A user other than root and this one could put a folder of theirs in the place of one on the way: it lies in a
            folder that all may write without the sticky bit (as root: or that a group may write), or it belongs to another user
            in a folder that all may write.
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
                f"{at} may be written by other users (mode {stat.S_IMODE(found.st_mode):o}), who could replace {name} in it",
                f"chmod go-w {at}, or name a folder of your own",
            )
        if above.st_mode & stat.S_IWOTH and found.st_uid not in (0, us):
            raise NotOwned(
                f"{at} belongs to user {found.st_uid} and lies in a folder that all users may write",
                "name a folder of your own",
            )
    return os.path.join(real, name)


def _prefixes(path: str) -> list[str]:
    """`/a/b` gives `/`, `/a`, `/a/b`."""
    parts = [part for part in path.split("/") if part]
    return ["/" + "/".join(parts[:count]) for count in range(len(parts) + 1)]


class OwnedFolder:
    """A folder of this user that no other user may write, held by its descriptor.

    Everything below it is reached from the descriptor: a name that leads elsewhere meanwhile changes nothing.
    """

    def __init__(self, path: str, *, is_private: bool = True) -> None:
        """Opens it.

        Args:
            is_private: No other user may write it; False where another proof stands in, such as its identity.

        Raises:
            FileNotFoundError: There is nothing of that name.
            NotOwned: It is a link or not a folder, belongs to another user, or other users may write it.
        """
        self.path = os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(path))), os.path.basename(path))
        try:
            self.fd = os.open(self.path, _FOLDER)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise NotOwned(f"{path} is a link or not a folder, and was not made by Penstock") from None
            raise
        try:
            found = os.fstat(self.fd)
            if found.st_uid != os.geteuid():
                raise NotOwned(f"{path} belongs to user {found.st_uid}, and this is user {os.geteuid()}")
            if is_private and found.st_mode & _OTHERS_WRITE:
                raise NotOwned(f"{path} may be written by other users (mode {stat.S_IMODE(found.st_mode):o})")
            self._mount = mount_of(self.fd)
        except BaseException:
            os.close(self.fd)
            raise
        self._faults: list[OSError] = []
        self._moved = 0

    @classmethod
    def made(cls, path: str, *, is_private: bool = True) -> OwnedFolder:
        """Makes the folder where there is nothing of its name, and opens it."""
        with suppress(FileExistsError):
            os.mkdir(path, 0o700 if is_private else 0o777)
        return cls(path, is_private=is_private)

    def __enter__(self) -> OwnedFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets the descriptor go; safe twice."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    @property
    def identity(self) -> tuple[int, int]:
        """Device and number: two folders never have the same at one time."""
        found = os.fstat(self.fd)
        return found.st_dev, found.st_ino

    def names(self) -> list[str]:
        """What lies in it."""
        return os.listdir(self.fd)

    def folder(self, name: str) -> None:
        """Makes a folder in it, where there is none.

        Raises:
            NotOwned: The name is a link, a file or another user's.
        """
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self.fd)
        found = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise NotOwned(f"{self.path}/{name} is not a folder of ours")

    def read(self, name: str) -> bytes | None:
        """A file of ours in it; None where there is none.

        Raises:
            NotOwned: The name is a link, not a file, or another user's.
        """
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NotOwned(f"{self.path}/{name} is a link, and was not made by Penstock") from None
            raise
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise NotOwned(f"{self.path}/{name} is not a file of ours")
            return os.read(fd, _MAX_LEASE_BYTES)
        finally:
            os.close(fd)

    def write(self, name: str, data: bytes, *, replaces: bool) -> bool:
        """Writes a file whole under its name. False, and nothing is changed, where one is there that it may not replace."""
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
        """Unmounts what is mounted at these folders of it, or below them.

        Raises:
            NotOwned: Something is mounted elsewhere below this folder; then nothing is unmounted.
        """
        ours = tuple(f"{self.path}/{point}" for point in points)
        found = mounts_below(self.path)
        others = [path for path in found if not any(path == own or path.startswith(own + "/") for own in ours)]
        if others:
            raise NotOwned(
                f"{others[0]} is mounted below {self.path}, and not by Penstock",
                f"unmount it first: umount {others[0]}",
            )
        return [path for path in found if unmount(path)]

    def remove(self, keep: Collection[str] = ()) -> bool:
        """Removes what lies in it, and the folder itself where nothing is kept; whether the folder is gone.

        Args:
            keep: Names in it that stay.

        Raises:
            NotOwned: Something is mounted below it: that is left, the rest is removed.
            OSError: The first thing that could not be removed; the rest is removed.
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
            # By its name, which may lead elsewhere by now; an empty folder is all that it could take.
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
                continue  # it went by itself, or by another command of ours
            except OSError as error:
                # The others go all the same.
                error.filename = error.filename and f"{path}/{name}"
                self._faults.append(error)

    def _empty_one(self, fd: int, name: str, path: str, depth: int) -> None:
        inner = os.open(name, _FOLDER, dir_fd=fd)
        try:
            if mount_of(inner) != self._mount:
                raise NotOwned(
                    f"{path} is mounted below {self.path}, and not by Penstock", f"unmount it first: umount {path}"
                )
            self._empty(inner, path, depth=depth)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=fd)


def leased(path: str, name: str, lease: str = "") -> tuple[OwnedFolder, dict[str, Any]]:
    """A folder with a lease of that name, made at that path; and the lease.

    Args:
        lease: Only this one; with none, whichever it has.

    Raises:
        FileNotFoundError: There is no folder.
        NotOwned: It is not an OwnedFolder, or `lease.json` in it is missing, of another name, of another path, or of another
            lease than asked for.
    """
    folder = OwnedFolder(path)
    try:
        held = lease_of(folder)
        if held is None:
            raise NotOwned(f"{path} has no lease of a pool", "remove it yourself if it is yours")
        if (held.get("name"), held.get("root", path)) != (name, path):
            raise NotOwned(f"{path} has the lease of the pool `{held.get('name')}` at {held.get('root')}")
        if lease and held.get("lease") != lease:
            raise NotOwned(f"{path} has the lease of another start")
    except BaseException:
        folder.close()
        raise
    return folder, held


def lease_of(folder: OwnedFolder) -> dict[str, Any] | None:
    """The lease in a folder, or None."""
    data = folder.read(LEASE)
    try:
        held = json.loads(data) if data else None
    except ValueError:
        return None
    return held if isinstance(held, dict) else None


@contextmanager
def temporary_folder(parent: str | None, prefix: str) -> Iterator[str]:
    """A new folder, removed at the end. Proof: this block made it, and has held its descriptor since."""
    with OwnedFolder(tempfile.mkdtemp(prefix=prefix, dir=parent)) as folder:
        try:
            yield folder.path
        finally:
            with suppress(OSError):
                folder.remove()


def identity_of(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Device and number of what lies under a name; a link is not followed."""
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def remove_made(path: str | os.PathLike[str], identity: tuple[int, int]) -> bool:
    """Removes a folder that this process made; whether it is gone. Proof: it is the very one, by the identity that it had then."""
    try:
        with OwnedFolder(os.fspath(path), is_private=False) as folder:
            return folder.identity == identity and folder.remove()
    except OSError:
        return False


def remove_empty_folder(path: str | os.PathLike[str]) -> bool:
    """Removes a folder of this user that holds nothing; whether there was one."""
    try:
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return False
        os.rmdir(path)
    except OSError:  # not there, not empty, or not ours to change
        return False
    return True


def remove_flat_folder(path: str, pattern: str) -> bool:
    """Removes a folder that holds only files of ours whose whole names match the pattern; whether it is gone.

    For folders that several processes of this user make together. Anything else in it, and it stays as it is.
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
    """Removes a plain file of this user; whether there was one.

    Raises:
        NotOwned: It is a link, not a file, or another user's.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise NotOwned(f"{os.fspath(path)} is not a file of ours")
    with suppress(FileNotFoundError):
        os.unlink(path)
    return True


def remove_below(folder: str | os.PathLike[str], name: str) -> bool:
    """Removes the file `name` (`a/b/c`) below a folder; whether there was one. No link on the way is followed.

    Raises:
        NotOwned: A part of the name is a link.
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
            raise NotOwned(f"{os.fspath(folder)}/{name}: a part of the name is a link or not a folder") from None
        raise
    finally:
        os.close(fd)
    return True
