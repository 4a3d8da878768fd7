"""Exceptions for what a user can cause and mend."""

import errno


class UserError(Exception):
    """What is wrong, where (file, record, line, key) and what to do, in one or two lines.

    The command line prints it without a traceback and exits with 1; any other exception is a bug
    and keeps its traceback.
    """


class PassingError(UserError):
    """What another attempt, later or elsewhere, may well do."""


class UnknownIdError(UserError, KeyError):
    """An id, or a key, that no vector has."""

    __str__ = Exception.__str__  # a KeyError shows its message in quotes


class DeviceError(PassingError):
    """A device that cannot be used or computes wrongly: another one may do the same work."""


_MEMORY = ("out of memory", "STATUS_ALLOC_FAILED", "can't allocate memory")
_LOST = ("CUDA error", "CUDA driver error", "Triton Error [CUDA]", "CUBLAS_STATUS", "CUDNN_STATUS")


def out_of_memory(error: BaseException) -> bool:
    """Whether an error is about memory, the device's or the host's, after which the device works as before.

    By what torch's allocators, CUDA and cuBLAS say: they have no common type.
    """
    return type(error).__name__ == "OutOfMemoryError" or any(text in str(error) for text in _MEMORY)


def device_lost(error: BaseException) -> bool:
    """Whether an error leaves the device unusable for this process (device assert, Xid, ECC, a failed launch)."""
    return any(text in str(error) for text in _LOST) and not out_of_memory(error)


def no_space(error: BaseException) -> str:
    """What to say when `error`, or one that it came from, is a full or read-only disk or a spent quota; else empty."""
    seen: BaseException | None = error
    before: set[int] = set()
    while seen is not None and id(seen) not in before:
        before.add(id(seen))
        if isinstance(seen, OSError) and seen.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            path = seen.filename2 or seen.filename  # of a copy, the second one is written
            where = f" ({path})" if path else ""
            if seen.errno == errno.EROFS:
                return f"the disk is read-only{where}\nhave it mended and run again: what is finished stays"
            return f"no space left on the disk, or no quota{where}\nmake room and run again: what is finished stays"
        seen = seen.__cause__ or seen.__context__
    return ""
