"""Exceptions for what a user can cause and mend."""

import errno


class UserError(Exception):
    """What is wrong, where (file, record, line, key) and what to do, in one or two lines.

    The command line prints it without a traceback and exits with 1; any other exception is a bug
    and keeps its traceback.
    """


class DeviceError(UserError):
    """A device that cannot be used or computes wrongly: another one may do the same work."""


def no_space(error: BaseException) -> str:
    """What to say when `error`, or one that it followed from, is a full disk or a spent quota; else empty."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in (errno.ENOSPC, errno.EDQUOT):
            where = f" ({seen.filename})" if seen.filename else ""
            return f"no space left on the disk, or no quota{where}\nmake room and run again: what is finished stays"
        seen = seen.__cause__ or seen.__context__
    return ""
