"""The one exception for everything that a user can cause and mend."""


class UserError(Exception):
    """What is wrong, where (file, record, line, key) and what to do, in one or two lines.

    The command line prints it without a traceback and exits with 1; any other exception is a bug
    and keeps its traceback.
    """


class DeviceError(UserError):
    """A device that cannot be used or computes wrongly: another one may do the same work."""
