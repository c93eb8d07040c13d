"""The ways in which a run ends early."""

from __future__ import annotations

import errno

# What a user can put right by naming another file or folder.
NAMED_WRONGLY = (
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EINVAL,
)  # fmt: skip


class UserError(ValueError):
    """A user's mistake, in a sentence that says what would be right: exit code 2."""


class MachineError(UserError):
    """The machine's trouble, such as a full disk or a file that may not be read: exit code 4."""


def from_os(sentence: str, error: OSError) -> UserError:
    """The sentence as the user's mistake or as the machine's trouble, with what the system says."""
    kind = UserError if error.errno in NAMED_WRONGLY else MachineError
    return kind(f"{sentence}: {error.strerror or error}")


class DivergedError(RuntimeError):
    """The loss has blown up: exit code 3.

    result: what was measured until then, where the run was called for from Python.
    """

    result: object = None
