"""Waits of a release's server before it ends, whose results are not read here."""

from __future__ import annotations

import re

import pytest

from harness.releases import managed_releases
from harness.workers.servers.server import DEFAULT_ENVIRONMENT


@pytest.mark.parametrize(
    "release", managed_releases.list_releases(), ids=lambda release: release.name
)
def test_a_server_that_crashes_waits_for_no_dump(release: managed_releases.Release) -> None:
    if not release.has_sources:
        pytest.skip(f"SGLang {release.name} is not here")
    environ = release.open_sources().read("sglang.srt.environ")
    assert environ is not None
    waits = re.findall(r"(\w+_BEFORE_CRASH) = EnvBool\(True\)", environ.text)
    assert bool(waits) is ("_BEFORE_CRASH" in environ.text)
    assert {DEFAULT_ENVIRONMENT[name] for name in waits} <= {"0"}
