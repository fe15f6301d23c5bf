"""One model of the rehearsals' folder, with as many layers as a test asks for, by the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.core import paths
from harness.releases import managed_releases
from harness.runs.rehearse.deployment import read_model

RELEASE = "0.5.23"
IS_READY = managed_releases.get_release(RELEASE).is_ready
REASON = f"needs the environment of {RELEASE}: ./unfix test makes it"


def rehearse_model(
    home: Path,
    model: str,
    layers: int | None,
    words: Sequence[str] = (),
    server_arguments: Sequence[str] = (),
) -> dict[str, Any]:
    """Rehearse a model whose four batches are all made, and return its deployment."""
    deployment = rehearse_layers(home, model, layers, words, server_arguments)
    assert [phase["failure"] for phase in deployment["phases"]] == [""] * 4
    return deployment


def rehearse_layers(
    home: Path,
    model: str,
    layers: int | None,
    words: Sequence[str],
    server_arguments: Sequence[str],
) -> dict[str, Any]:
    """Rehearse a model's first layers, and return its deployment of the command's JSON."""
    config = dict(read_model(model).config)
    if layers is not None:
        config["num_hidden_layers"] = layers
        if "layer_types" in config:
            config["layer_types"] = config["layer_types"][:layers]
    file = home / f"{model}.json"
    file.write_text(json.dumps(config))
    if not (home / ".releases").exists():
        (home / ".releases").symlink_to(paths.releases_folder())
    command = ["--config", str(file), "--release", RELEASE, "--json", *words]
    finished = subprocess.run(
        [sys.executable, "-m", "harness", "rehearse", *command, "--", *server_arguments],
        cwd=paths.project_folder(),
        env={**os.environ, "UNFIX_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert finished.returncode in (0, 1), finished.stderr
    deployment: dict[str, Any]
    [deployment] = json.loads(finished.stdout)["deployments"]
    assert not deployment["refusal"], deployment["detail"]
    return deployment
