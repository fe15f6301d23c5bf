"""The request of an evaluation: its matrix, from a file or from one configuration's arguments."""

from __future__ import annotations

import datetime
import os
import secrets
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.core import machine, paths
from harness.core.device import VIRTUAL
from harness.core.errors import NotReadyError, UnfixError
from harness.matrices import reader
from harness.matrices.schema import EvaluationConfiguration, MatrixFile
from harness.releases import managed_releases, provisioning, source_trees
from harness.runs.eval import configuration_checks, model_folders, paired_statistics
from harness.runs.eval.configuration_checks import TRANSFORMERS_ENGINE
from harness.runs.eval.runner import get_evaluation_folder
from harness.runs.eval.serving_job import ServingSettings

# The arguments that each server gets by default, by device.
SERVER_ARGUMENTS = {
    "cpu": "--attention-backend torch_native --disable-cuda-graph --disable-overlap-schedule "
    "--sleep-on-idle --mem-fraction-static 0.5 --max-total-tokens 8192",
    VIRTUAL: "--attention-backend triton --sleep-on-idle --mem-fraction-static 0.5 "
    "--max-total-tokens 8192 --max-running-requests 8",
    "cuda": "--mem-fraction-static 0.2",
}


@dataclass(frozen=True)
class EvaluationRequest:
    """The arguments of `unfix eval`; None or empty where the default counts."""

    matrix: str  # a file or a name; '' for one configuration
    words: list[str]  # SGLang's arguments of one configuration, behind `--`
    model: str
    draft: str
    dtype: str
    against: str | None
    tasks: list[str]
    release: str | None
    revert: list[str]
    enable: list[str]
    stand_ins: list[str]
    only: list[str]
    without_faults: bool
    items: int | None
    limit: int | None
    seed: int | None
    device: str | None
    jobs: int | None
    concurrency: int | None
    always_cold: bool
    patience: float  # seconds for a server to start
    toggles: list[Path]

    def __post_init__(self) -> None:
        for name in ("items", "limit", "jobs", "concurrency", "patience"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UnfixError(f"--{name} {value} is too small")

    @property
    def job_count(self) -> int:
        return self.jobs or max(1, min(4, os.cpu_count() or 2))

    def choose_item_limit(self, matrix: MatrixFile) -> int:
        """Return how many items of a task a doubtful comparison may ask for."""
        default = self.items or max(paired_statistics.MAX_ITEMS, matrix.items)
        limit = self.limit or default
        if limit < matrix.items:
            raise UnfixError(f"--limit {limit} is less than the {matrix.items} items of a task")
        return limit


def make_matrix(request: EvaluationRequest) -> MatrixFile:
    """Return the matrix of the file, or of one configuration, changed by the other arguments."""
    matrix = _read_matrix(request) if request.matrix else _make_single_matrix(request)
    if request.only:
        _select_configurations(matrix, request.only)
    if request.tasks:
        matrix.tasks = request.tasks
        for configuration in matrix.configurations:
            configuration.tasks = []
        for fault in matrix.faults:
            fault.tasks = []
    for name in ("items", "seed", "device", "concurrency", "release"):
        if (value := getattr(request, name)) is not None:
            setattr(matrix, name, value)
    for configuration in matrix.configurations:
        if request.items is not None:
            configuration.items = 0
        if request.concurrency is not None:
            configuration.concurrency = 0
    configuration_checks.check_matrix(matrix)
    return matrix


def _read_matrix(request: EvaluationRequest) -> MatrixFile:
    if request.model or request.draft or request.against or request.dtype:
        raise UnfixError("a matrix file names its models and bases: leave out these options")
    if request.words:
        raise UnfixError("a matrix file names its server arguments: leave out those behind `--`")
    matrix = configuration_checks.read_matrix(reader.find_matrix_file(request.matrix))
    if request.without_faults:
        matrix.faults = []
    for configuration in matrix.configurations:
        if configuration.engine != TRANSFORMERS_ENGINE:
            for name in ("revert", "enable", "stand_ins"):
                values = [*getattr(configuration, name), *getattr(request, name)]
                setattr(configuration, name, list(dict.fromkeys(values)))
    return matrix


def _select_configurations(matrix: MatrixFile, names: list[str]) -> None:
    """Select the named configurations, their faults, and all bases that they need."""
    unknown = set(names) - {one.name for one in matrix.configurations}
    if unknown:
        raise UnfixError(f"no configuration is called {', '.join(sorted(unknown))}")
    needed: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in needed:
            needed.add(name)
            pending += matrix.find_configuration(name).base_names
    matrix.configurations = [one for one in matrix.configurations if one.name in needed]
    for fault in matrix.faults:
        fault.where = [name for name in fault.where if name in names]
    matrix.faults = [fault for fault in matrix.faults if fault.where]


def _make_single_matrix(request: EvaluationRequest) -> MatrixFile:
    """Make a matrix of one configuration and its base."""
    device = choose_device(request.device)
    common = SERVER_ARGUMENTS[device]
    candidate = EvaluationConfiguration(
        "candidate",
        request.model or "llama",
        shlex.join(request.words),
        draft=request.draft,
        stand_ins=request.stand_ins,
        revert=request.revert,
        enable=request.enable,
    )
    base = _make_base(request, candidate)
    configurations = [candidate]
    if base is not None:
        candidate.against = base.name
        configurations.insert(0, base)
    dtype = request.dtype or ("bfloat16" if device == "cuda" else "float32")
    return MatrixFile("eval", configurations, serve=common, dtype=dtype, device=device)


def _make_base(
    request: EvaluationRequest, candidate: EvaluationConfiguration
) -> EvaluationConfiguration | None:
    """Make the default base: no toggles, or plain transformers for a model of this project."""
    against = request.against
    plain = msgspec.structs.replace(candidate, name="base", revert=[], enable=[])
    if against is None and (candidate.revert or candidate.enable):
        candidate.like = plain.name
        return plain
    if against == TRANSFORMERS_ENGINE or (against is None and _is_own_model(candidate.model)):
        candidate.like = TRANSFORMERS_ENGINE
        return EvaluationConfiguration(
            TRANSFORMERS_ENGINE, candidate.model, engine=TRANSFORMERS_ENGINE
        )
    if against is None:
        return None
    releases = {release.name for release in managed_releases.list_known_releases()}
    if against in releases | {"current"}:
        name = against.replace("+", "-")  # a changed checkout is called g1a2b3c+dirty
        return msgspec.structs.replace(plain, name=name, release=against)
    if against.startswith("-"):
        draft = plain.draft if "--speculative" in against else ""
        return msgspec.structs.replace(plain, serve=against, draft=draft)
    raise UnfixError(
        f"--against {against} is neither a release nor a checkout (~/sglang@main) nor "
        "'transformers' nor SGLang's arguments"
    )


def _is_own_model(model: str) -> bool:
    root = paths.project_folder()
    folders = [root / folder / model for folder in configuration_checks.MODEL_FOLDERS]
    return "/" not in model and any(folder.is_dir() for folder in folders)


def choose_device(requested: str | None) -> str:
    if requested in SERVER_ARGUMENTS:
        return requested
    return "cuda" if machine.describe_gpus() else "cpu"


def prepare_serving(
    request: EvaluationRequest, matrix: MatrixFile, report_status: Callable[[str], None]
) -> ServingSettings:
    """Check the models and the device, install the releases, and make the run's folder."""
    for one in matrix.configurations:
        if not one.absent:
            for name in filter(None, (one.model, one.draft)):
                model_folders.find_model_folder(name)
    device = choose_device(matrix.device)
    machine.require_device(device)
    release = matrix.release or _choose_release()
    releases = {release} | {one.release for one in matrix.configurations if one.release}
    if device == "cuda" and releases != {"current"}:
        raise NotReadyError(
            "on a GPU a managed release has stand-ins for SGLang's kernels and serves nothing: "
            "--release current, from an environment that has them"
        )
    provisioning.ensure_installed(
        [managed_releases.get_release(name) for name in sorted(releases - {"current"})],
        report_status,
    )
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = get_evaluation_folder(f"eval-{now}-{secrets.token_hex(2)}", paths.state_folder())
    folder.mkdir(parents=True)
    return ServingSettings(
        device,
        release,
        folder,
        tuple(request.toggles),
        request.always_cold,
        request.patience,
        float(matrix.within),
    )


def _choose_release() -> str:
    if source_trees.find_installed_tree() is not None:
        return "current"
    return (managed_releases.find_default_release() or managed_releases.get_newest_release()).name
