"""Fixtures shared by the harness's own tests: the toy release and its toggles."""

from __future__ import annotations

import importlib.util
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Patch
from hypothesis import HealthCheck, settings

from harness.core import preparation
from harness.guards import hypothesis_adapter, profiles

TOY = Path(__file__).parent / "toy"
# The tests under releases/ run in a release's environment, over the real release.
if importlib.util.find_spec("sglang") is None:
    sys.path.insert(0, str(TOY))

# Every run draws the same examples, however slow the machine is. The nightly workflow draws others:
# `unfix test -m "hypothesis and not guards" --hypothesis-profile explore`.
REPRODUCIBLE, EXPLORE = "reproducible", "explore"
for profile, is_derandomized in ((REPRODUCIBLE, True), (EXPLORE, False)):
    settings.register_profile(
        profile,
        parent=settings.get_profile("default"),
        derandomize=is_derandomized,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=(HealthCheck.too_slow,),
    )
settings.load_profile(REPRODUCIBLE)
hypothesis_adapter.ignore_imported_constants()


def pytest_configure(config: pytest.Config) -> None:
    """Make warnings errors, but in a session with suites, whose imports of SGLang warn."""
    if "ignore" not in config.getini("filterwarnings"):
        for line in ("error", "ignore::DeprecationWarning:triton.*"):
            config.addinivalue_line("filterwarnings", line)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their argument: they may contain a time, and xdist needs equal names."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """Restore Ctrl-C: a shell's background job ignores it, and so would its children."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    if ignored:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.fixture
def smoke_profile() -> Iterator[None]:
    """Load a profile of the suites, and restore the tests' own after the test."""
    usual, listeners = settings.get_current_profile_name(), list(preparation.LISTENERS)
    profiles.load_profile("smoke")
    yield
    settings.load_profile(usual)
    preparation.LISTENERS[:] = listeners


@pytest.fixture
def toy() -> Path:
    return TOY


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: Patch) -> Any:
    """A workspace without releases, and the pip that will fill it."""
    from fake_releases import set_up_releases

    return set_up_releases(tmp_path, monkeypatch)


@pytest.fixture
def release(pip: Any) -> Any:
    """An installed release of a few bytes."""
    from fake_releases import install_fake_release

    return install_fake_release()


@pytest.fixture(scope="session")
def home_of_plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home where each plan over the toy release is made once for all tests."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def shell(tmp_path: Path, home_of_plans: Path) -> Any:
    from shell import Shell

    return Shell(tmp_path, home_of_plans)
