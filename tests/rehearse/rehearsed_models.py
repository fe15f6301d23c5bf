"""Models of the rehearsals' folder, each with as many layers as a test asks for."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.core import paths
from harness.releases import managed_releases
from harness.runs.rehearse.deployment import Deployment, make_deployment, read_model
from harness.runs.rehearse.request import RehearseWorkerRequest
from harness.workers.lane_process import LaneProcess
from harness.workers.release_target import ReleaseTarget

RELEASE = "0.5.23"
PLANTED_TOGGLES = Path(__file__).parent / "planted_toggles"
WIDE_DECODE = ("28788-grouped-stage1", "28788-stage2")
# Of other kernels than those of the decode: one worker has all three.
MISPLACED_SIBLINGS = (*WIDE_DECODE, "misplaced-siblings")
IS_READY = managed_releases.get_release(RELEASE).is_ready
REASON = f"needs the environment of {RELEASE}: ./unfix test makes it"


@dataclass(frozen=True)
class ModelToRehearse:
    """A model's first layers, as a worker that imports SGLang with these toggles rehearses them."""

    name: str
    layers: int
    arguments: tuple[str, ...] = ()  # of the server
    thresholds: bool = False
    all_layers: bool = False
    toggles: tuple[str, ...] = ()  # that are reverted

    def make_deployment(self) -> Deployment:
        deployment = make_deployment(self.name, None, None, None, list(self.arguments))
        return msgspec.structs.replace(
            deployment,
            config=keep_layers(deployment.config, self.layers),
            thresholds=self.thresholds,
            all_layers=self.all_layers,
        )


def keep_layers(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """Return a model's configuration with its first layers alone."""
    kinds = {"layer_types": config["layer_types"][:layers]} if "layer_types" in config else {}
    return {**config, "num_hidden_layers": layers, **kinds}


def rehearse_together(
    home: Path, models: list[ModelToRehearse]
) -> dict[ModelToRehearse, dict[str, Any]]:
    """Rehearse models of the same toggles in one worker."""
    folder = home / "-".join(["worker", *models[0].toggles])
    folder.mkdir(exist_ok=True)
    releases = home / ".releases"
    if not releases.exists():
        releases.symlink_to(paths.releases_folder())
    results: dict[ModelToRehearse, dict[str, Any]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNFIX_HOME", str(home))
        release = managed_releases.get_release(RELEASE)
        target = ReleaseTarget(RELEASE, release.python, release.open_sources())
        toggles = models[0].toggles, (), [PLANTED_TOGGLES]
        worker = LaneProcess(target, "harness.runs.rehearse.rehearse_worker", folder, *toggles)
        work = RehearseWorkerRequest(
            str(folder),
            jobs=2,
            seconds=400.0,
            deployments=[model.make_deployment() for model in models],
        )
        for message in worker.iterate_messages(msgspec.json.encode(work)):
            if "done" in message:
                results[models[message["done"]]] = json.loads(message["result"])
    assert len(results) == len(models), worker.read_log()
    assert not any(result["refusal"] for result in results.values()), results
    return results


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
    """Rehearse a model's first layers by the command, and return its deployment."""
    command = make_command(home, model, layers, [*words, "--release", RELEASE], server_arguments)
    deployment = run_command(home, command)
    assert not deployment["refusal"], deployment["detail"]
    return deployment


def make_command(
    home: Path,
    model: str,
    layers: int | None,
    words: Sequence[str],
    server_arguments: Sequence[str],
) -> str:
    """Make the command that rehearses a model's first layers, or all of them."""
    config = read_model(model).config
    file = home / f"{model}.json"
    file.write_text(json.dumps(config if layers is None else keep_layers(config, layers)))
    command = ["--config", str(file), *words, "--", *server_arguments]
    return f"./unfix rehearse {shlex.join(command)}"


def run_command(home: Path, command: str, exit_codes: tuple[int, ...] = (0, 1)) -> dict[str, Any]:
    """Run a command in a shell as it stands, and return the deployment of its JSON."""
    finished = subprocess.run(
        command.replace("./unfix rehearse", f"{sys.executable} -m harness rehearse --json"),
        shell=True,
        cwd=paths.project_folder(),
        env={**os.environ, "UNFIX_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert finished.returncode in exit_codes, finished.stderr
    deployment: dict[str, Any]
    [deployment] = json.loads(finished.stdout)["deployments"]
    return deployment
