"""The example database of a release and its toggles, which workers and later runs share."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from harness.core import paths
from harness.core.errors import NotReadyError
from harness.guards.hypothesis_adapter import ExampleFolder
from harness.store.fuzz.values import ToggleDirections


def locate_corpus(release: str, under: ToggleDirections) -> Path:
    words = [f"{direction}-{toggle}" for toggle, direction in sorted(under)]
    name = "-".join(words) or "as-is"
    if len(name) > 80:
        name = hashlib.sha256(name.encode()).hexdigest()[:16]
    return paths.state_folder() / "fuzz" / "examples" / release / re.sub(r"[^\w.-]", "_", name)


def prepare_corpus(folder: Path) -> None:
    """Make the folder, and make sure that its disk has room."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"0" * 65536)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise make_unwritable_error(folder, error) from error


def make_unwritable_error(folder: Path, error: OSError) -> NotReadyError:
    return NotReadyError(
        f"examples cannot be kept in {folder}: {error.strerror or error}; make room there, or set "
        "UNFIX_HOME to a folder on another disk"
    )


class ExampleCorpus(ExampleFolder):
    """A database in Hypothesis's own layout, whose failed writes are errors.

    Hypothesis deletes an example that no longer fails. One whose failure is known counts as passed,
    and must not be deleted for it.
    """

    def __init__(self, folder: Path, is_known_failure: Callable[[], bool]) -> None:
        super().__init__(folder)
        self.folder = folder
        self.is_known_failure = is_known_failure

    def save(self, key: bytes, value: bytes) -> None:
        path = self.locate(key, value)
        if path.exists():
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Not beside the example, as `write_atomically` does: readers take every file there.
            handle, temporary = tempfile.mkstemp(dir=self.folder)
            with open(handle, "wb") as file:
                file.write(value)
            os.replace(temporary, path)
        except FileNotFoundError:  # another worker deleted the last example, and the folder
            self.save(key, value)
        except OSError as error:
            raise make_unwritable_error(self.folder, error) from error

    def move(self, src: bytes, dest: bytes, value: bytes) -> None:
        if src != dest:
            self.delete(src, value)
        self.save(dest, value)

    def delete(self, key: bytes, value: bytes) -> None:
        if not self.is_known_failure():
            super().delete(key, value)
