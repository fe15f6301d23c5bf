"""Files that other processes may read while they are written."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write the whole file, or leave the old one.

    The content goes to a temporary file in the same folder first; a reader sees the old file or the
    new one. Raises OSError, with nothing left behind, when the disk is full or fails.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
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
