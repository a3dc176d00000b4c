# SPDX-License-Identifier: Apache-2.0
"""Exceptions of Penstock. All derive from PenstockError, and each also from the builtin that a caller would expect.

    PenstockError
    ├── NotFound (FileNotFoundError)      the object, bucket, folder or file does not exist
    ├── Denied (PermissionError)          credentials or permissions do not allow it
    ├── Throttled (OSError)               the store still refused requests when the retry time ended
    ├── Unreachable (ConnectionError)     the host cannot be reached
    ├── ServerError (OSError)             the store returned 5xx, or broke the protocol
    ├── Deadline (TimeoutError)           the call exceeded its time limit
    ├── Corrupt (ValueError)              the bytes are damaged or truncated
    │   └── Mismatch                      an intact record that does not match a field
    ├── Changed (OSError)                 the object no longer has the pinned version
    ├── PreconditionFailed (FileExistsError)  the condition of a conditional write is false
    ├── Busy (BlockingIOError)            another process uses the resource; retry when it has ended
    ├── ConfigError (ValueError)          a setting, flag or argument is invalid
    ├── Unsupported (NotImplementedError) the store or the build cannot do this
    │   └── MissingPackage (ModuleNotFoundError)  an optional package is not installed
    ├── BudgetExceeded (MemoryError)      the memory limit is too small for the request
    ├── NoSpace (OSError)                 the disk is full
    ├── KeyRefused (ValueError)           a key that cannot be a file name below the destination
    ├── SystemFault (OSError)             the operating system failed for another reason
    ├── RankFailed (RuntimeError)         another rank of the job failed
    ├── MapFailed (RuntimeError)          a function of `Dataset.map` raised, or its worker ended
    ├── Interrupted (KeyboardInterrupt)   the user interrupted
    │   └── Terminated                    the system requested termination (SIGTERM)
    └── Bug (RuntimeError)                a defect in Penstock

Each class can be constructed from one string, so that its errors can be pickled and pass through a torch worker.
Details are attributes (`where`, `retryable` and those listed below). A hint is a note (`error.__notes__`), printed as
`hint:`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "BudgetExceeded",
    "Bug",
    "Busy",
    "Changed",
    "ConfigError",
    "Corrupt",
    "Deadline",
    "Denied",
    "Interrupted",
    "KeyRefused",
    "MapFailed",
    "Mismatch",
    "MissingPackage",
    "NoSpace",
    "NotFound",
    "PenstockError",
    "PreconditionFailed",
    "RankFailed",
    "ServerError",
    "SystemFault",
    "Terminated",
    "Throttled",
    "Unreachable",
    "Unsupported",
]

_SECRETS = (
    # User names and passwords in URLs. In s3, gs and az URLs, a secret may contain `/` (a bucket name never contains
    # `:`). A URL that was converted to a path has only one `/` after its scheme.
    (re.compile(r"((?:s3|gs|az)://?)[^/\s@]*:[^\s@]*@", re.IGNORECASE), r"\1***@"),
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://?)[^/\s@'\"`]+@", re.IGNORECASE), r"\1***@"),
    # Signatures and tokens in signed URLs and connection strings.
    (
        re.compile(
            r"([?&;](?:sig|signature|x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential)"
            r"|awsaccesskeyid|googleaccessid|(?:access_)?token|accountkey|sharedaccesssignature)=)[^&;\s'\"`]+",
            re.IGNORECASE,
        ),
        r"\1***",
    ),
)


def redact(text: str) -> str:
    """Return `text` with the credentials in its URLs replaced by `***`. Every `PenstockError` applies this to its
    message and hint.
    """
    if ":/" not in text and "=" not in text:
        return text
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


class PenstockError(Exception):
    """Base class of all Penstock errors. `code` is stable and printed as `error[code]`; `exit_code` is the exit code of
    the CLI.
    """

    code: ClassVar[str] = "penstock"
    exit_code: ClassVar[int] = 1
    retryable: bool = False
    where: str | None = None

    def __init__(self, message: str = "", *, hint: str | None = None, **facts: Any) -> None:
        message = redact(message)
        super().__init__(message)
        self.message = message
        for name, value in facts.items():
            setattr(self, name, value)
        if hint:
            self.add_note(hint)

    def add_note(self, note: str, /) -> None:
        """Add a hint, after removing credentials from its URLs."""
        super().add_note(redact(note))

    def __str__(self) -> str:
        # By default, OSError adds an errno to the text, and KeyError adds quotes.
        return self.message

    @property
    def hint(self) -> str | None:
        """The error's hint, or None."""
        notes = getattr(self, "__notes__", None)
        return notes[0] if notes else None

    def __reduce__(self) -> tuple[Any, ...]:
        # By default, OSError drops attributes when it is pickled. Penstock's attributes must reach other processes.
        return _rebuild, (type(self), self.message, dict(self.__dict__))


def _rebuild(kind: type[PenstockError], message: str, state: dict[str, Any]) -> PenstockError:
    error = kind(message)
    error.__dict__.update(state)
    return error


class NotFound(PenstockError, FileNotFoundError):
    code = "not-found"
    exit_code = 3


class Denied(PenstockError, PermissionError):
    code = "denied"
    exit_code = 3


class Throttled(PenstockError, OSError):
    """The store throttled `refused` of `sent` requests in `window_s` seconds."""

    code = "throttled"
    exit_code = 3
    retryable = True
    refused: int = 0
    sent: int = 0
    window_s: float = 0.0


class Unreachable(PenstockError, ConnectionError):
    code = "unreachable"
    exit_code = 3
    retryable = True


class ServerError(PenstockError, OSError):
    """`status` is the HTTP status, or 0 if the response was not HTTP."""

    code = "server"
    exit_code = 3
    retryable = True
    status: int = 0


class Deadline(PenstockError, TimeoutError):
    """`limit_s` is the exceeded time limit, in seconds."""

    code = "deadline"
    exit_code = 3
    retryable = True
    limit_s: float = 0.0


class Corrupt(PenstockError, ValueError):
    code = "corrupt"


class Mismatch(Corrupt):
    """The bytes are intact, but do not match the field."""

    code = "mismatch"


class Changed(PenstockError, OSError):
    """`want` is the pinned version, and `have` is the version found."""

    code = "changed"
    want: str = ""
    have: str = ""


class PreconditionFailed(PenstockError, FileExistsError):
    code = "precondition"
    exit_code = 3


class Busy(PenstockError, BlockingIOError):
    code = "busy"
    exit_code = 3
    retryable = True


class ConfigError(PenstockError, ValueError):
    code = "config"
    exit_code = 2


class Unsupported(PenstockError, NotImplementedError):
    code = "unsupported"
    exit_code = 3


class MissingPackage(Unsupported, ModuleNotFoundError):
    """`name` is the missing module. The hint contains the command that installs it."""

    code = "missing-package"
    name: str = ""


class BudgetExceeded(PenstockError, MemoryError):
    """`need` and `budget` are in bytes."""

    code = "budget"
    exit_code = 3
    need: int = 0
    budget: int = 0


class NoSpace(PenstockError, OSError):
    """`need` and `free` are in bytes."""

    code = "no-space"
    exit_code = 3
    need: int = 0
    free: int = 0


class KeyRefused(PenstockError, ValueError):
    """`key` is the key, escaped."""

    code = "key"
    key: str = ""


class SystemFault(PenstockError, OSError):
    code = "system"
    exit_code = 3


class RankFailed(PenstockError, RuntimeError):
    code = "rank-failed"
    rank: int = -1


class MapFailed(PenstockError, RuntimeError):
    """If one sample caused the error, `epoch` and `position` identify it. The function's traceback is a note."""

    code = "map"
    epoch: int = -1
    position: int = -1


class Interrupted(PenstockError, KeyboardInterrupt):
    code = "interrupted"
    exit_code = 130


class Terminated(Interrupted):
    code = "terminated"
    exit_code = 143


class Bug(PenstockError, RuntimeError):
    code = "bug"


def to_wire(error: BaseException) -> dict[str, Any]:
    """Convert an error to JSON for another process: `code`, `message` and `hint`. An exception that is not a
    PenstockError becomes a Bug.
    """
    if not isinstance(error, PenstockError):
        error = Bug(f"{type(error).__name__}: {error}")
    return {"code": error.code, "message": str(error), "hint": error.hint}


def from_wire(document: Mapping[str, Any], *, prefix: str = "", **facts: Any) -> PenstockError:
    """Rebuild the error that another process sent with `to_wire`. `prefix` is put before its message."""
    return of_code(document["code"], prefix + document["message"], hint=document.get("hint"), **facts)


def of_code(code: str, message: str, *, hint: str | None = None, **facts: Any) -> PenstockError:
    """Build an error from the `code` that another process reported. If the code is unknown to this version, it is a
    PenstockError.
    """
    kinds: list[type[PenstockError]] = [PenstockError]
    for kind in kinds:
        if kind.code == code:
            return kind(message, hint=hint, **facts)
        kinds += kind.__subclasses__()
    return PenstockError(message, hint=hint, **facts)
