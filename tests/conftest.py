"""What the harness's own tests share: the toy release and its toggles."""

from __future__ import annotations

import importlib.util
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Patch

TOY = Path(__file__).parent / "toy"
# The tests under releases/ run in the environment of a release, over the real one.
if importlib.util.find_spec("sglang") is None:
    sys.path.insert(0, str(TOY))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes may hold the time they were made at, and xdist wants the same names of each worker."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """A shell's background job ignores Ctrl-C, and so would each process that a test starts."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    if ignored:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.fixture
def toy() -> Path:
    return TOY


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: Patch) -> Any:
    """A workspace without releases, and the pip that will fill it."""
    from fake_releases import workspace

    return workspace(tmp_path, monkeypatch)


@pytest.fixture
def release(pip: Any) -> Any:
    """A release of a few bytes that is there."""
    from fake_releases import added

    return added()


@pytest.fixture
def shell(tmp_path: Path) -> Any:
    from shell import Shell

    return Shell(tmp_path)
