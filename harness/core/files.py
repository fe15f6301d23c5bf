"""Files that other processes may read while they are written."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write the whole file, or leave the old one.

    The content goes to a temporary file in the same folder first; a reader sees the old file or the
    new one. A device, a pipe or a link, such as /dev/stdout, is written into: a file must not take
    its place. Raises OSError with this path, and leaves nothing behind, when the disk is full.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_bytes(data)
        else:
            _replace_file(path, data)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def describe_os_error(error: OSError) -> str:
    """Describe an error with its file; of a disk that takes no more, say what to do."""
    if error.errno not in _FULL_DISK_ERRORS:
        return str(error)
    return (
        f"{error.filename or 'a file'} cannot be written: {error.strerror}; free disk space there, "
        "or name a file on another disk"
    )


_FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _replace_file(path: Path, data: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o666 & ~_read_umask())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _read_umask() -> int:
    umask = os.umask(0o022)
    os.umask(umask)
    return umask
