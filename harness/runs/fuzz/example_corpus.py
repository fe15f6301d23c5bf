"""The example database: one a release and its toggles, shared by workers, kept between nights."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase

from harness.core import paths
from harness.core.errors import NotReadyError
from harness.runs.fuzz.messages import ToggleDirections


def locate_corpus(release: str, under: ToggleDirections) -> Path:
    words = [f"{direction}-{toggle}" for toggle, direction in sorted(under)]
    name = "-".join(words) or "as-is"
    if len(name) > 80:
        name = hashlib.sha256(name.encode()).hexdigest()[:16]
    return paths.state_folder() / "fuzz" / "examples" / release / re.sub(r"[^\w.-]", "_", name)


def prepare_corpus(folder: Path) -> None:
    """Have the folder there, and room in it."""
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


class ExampleCorpus(ExampleDatabase):
    """Hypothesis's own layout in a folder, but a write that fails is an error.

    An example that failed in a way that is known passes by here, and is not forgotten for it.
    """

    def __init__(self, folder: Path, is_known_failure: Callable[[], bool]) -> None:
        super().__init__()
        self.folder = folder
        self.database = DirectoryBasedExampleDatabase(folder)
        self.is_known_failure = is_known_failure

    def fetch(self, key: bytes) -> Iterable[bytes]:
        return self.database.fetch(key)

    def save(self, key: bytes, value: bytes) -> None:
        path = self.database._value_path(key, value)
        if path.exists():
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Written aside and renamed: another worker never reads half of it.
            handle, name = tempfile.mkstemp(dir=self.folder)
            with open(handle, "wb") as file:
                file.write(value)
            os.replace(name, path)
        except FileNotFoundError:
            # Another worker took the last example, and with it the folder.
            self.save(key, value)
        except OSError as error:
            raise make_unwritable_error(self.folder, error) from error

    def delete(self, key: bytes, value: bytes) -> None:
        if not self.is_known_failure():
            self.database.delete(key, value)
