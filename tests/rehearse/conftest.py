"""One home for all rehearsals, and one worker for those of the same toggles.

Kernels that two rehearsals launch are compiled once, and a release is imported once for many.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rehearsed_models import ModelToRehearse, rehearse_together

from harness.core import paths


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    (folder / ".releases").symlink_to(paths.releases_folder())
    (folder / ".unfix").mkdir()
    return folder


@pytest.fixture
def deployments(
    request: pytest.FixtureRequest, rehearsals: dict[ModelToRehearse, Any], home: Path
) -> list[dict[str, Any]]:
    """The results of the models that are the test's parameter."""
    models: list[ModelToRehearse] = request.param
    for model in models:
        if model not in rehearsals:
            alike = [one for one in list_models(request.session) if one.toggles == model.toggles]
            rehearsals |= rehearse_together(home, alike)
    return [rehearsals[model] for model in models]


@pytest.fixture(scope="session")
def rehearsals() -> dict[ModelToRehearse, Any]:
    """The results so far."""
    return {}


def list_models(session: pytest.Session) -> list[ModelToRehearse]:
    """List the models that the tests of this session have as their parameters."""
    models: dict[ModelToRehearse, None] = {}
    for item in session.items:
        is_skipped = any(mark.args[0] for mark in item.iter_markers("skipif"))
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if not is_skipped:
            models |= dict.fromkeys(parameters.get("deployments", ()))
    return list(models)
