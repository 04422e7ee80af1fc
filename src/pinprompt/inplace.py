"""Opening a file where it stands: never through a link, never a pipe or a device. For folders that may be a stranger's.

A run folder can come from anywhere. A link in it would let it read or write a file outside, a pipe would make a reader
wait for ever; so both are refused, by the opening itself: between a check and an opening there is time for a change.
"""

from __future__ import annotations

import errno
import os
import stat


def opener(path: str, flags: int) -> int:
    """For `open(..., opener=opener)`: a regular file or a new one, else an OSError that says what it is."""
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise OSError(error.errno, "it is a link, and files are used where they stand", path) from None
        if error.errno == errno.ENXIO:
            raise OSError(error.errno, "it is no regular file", path) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no regular file", path)
    return handle
