"""A run of `unfix eval`: from what was asked to a matrix, through it, to what is shown."""

from __future__ import annotations

import argparse
import datetime
import os
import secrets
import shlex
import signal
from pathlib import Path
from types import FrameType

import msgspec

from harness.cli import options, run_kinds, run_output
from harness.core import machine, paths
from harness.core.errors import NotReadyError, UnfixError
from harness.core.wording import format_count
from harness.releases import managed_releases, provisioning
from harness.runs.eval import (
    evaluation_comparer,
    lm_eval_scorer,
    model_folders,
    paired_statistics,
)
from harness.runs.eval import matrix_file as matrices
from harness.runs.eval.evaluation_servers import ServingSettings
from harness.runs.eval.matrix_file import (
    TRANSFORMERS_ENGINE,
    EvaluationConfiguration,
    EvaluationMatrix,
)
from harness.runs.eval.runner import EvaluationRunner, begin_evaluation, get_evaluation_folder
from harness.store.eval.values import Evaluation

CPU_SERVER_ARGUMENTS = (
    "--attention-backend torch_native --disable-cuda-graph --disable-overlap-schedule "
    "--sleep-on-idle --mem-fraction-static 0.5 --max-total-tokens 8192"
)
CUDA_SERVER_ARGUMENTS = "--mem-fraction-static 0.2"


def run_evaluation(arguments: argparse.Namespace) -> int:
    from harness.store.database import Store

    run_output.check_outputs(run_kinds.EVAL, arguments)
    _check_numbers(arguments)
    matrix = _make_matrix(arguments)
    if arguments.judge_again is not None:
        return _judge_recorded_answers(arguments, matrix)
    limit = _choose_item_limit(arguments, matrix)
    _check_models_exist(matrix)
    where = _prepare_serving(arguments, matrix)  # fetches the release, if it is not there
    lm_eval_scorer.find_lm_eval_python()  # installs lm-eval if need be, before anything is served
    store = Store()
    identity = where.folder.name
    new = begin_evaluation(matrix, where, identity, shlex.join(run_output.get_recorded_command()))
    new.machine = machine.describe_machine(str(where.get_python(where.release)))
    options.report_status(
        f"{format_count(len(matrix.configurations), 'configuration')} on {where.device} with SGLang "
        f"{where.release}, {matrix.items} items a task"
        + (f", {format_count(len(matrix.faults), 'fault')}" if matrix.faults else "")
    )
    store.eval.save(new)

    def saw(evaluation: Evaluation, what: str) -> None:
        options.report_status(what)
        store.eval.save(evaluation)

    jobs = arguments.jobs or max(1, min(4, (os.cpu_count() or 2)))
    # As all whom a scheduler ends: the servers go first.
    signal.signal(signal.SIGTERM, _raise_interrupt)
    going = EvaluationRunner(matrix, where, new, jobs=jobs, max_items=limit, on_progress=saw)
    stopped = False
    try:
        done = going.execute()
    except KeyboardInterrupt as stop:
        options.report_notes(stop)
        done, stopped = new, True
    finally:
        store.eval.save(new)
    return _print_evaluation(done, arguments, stopped)


def _judge_recorded_answers(arguments: argparse.Namespace, matrix: EvaluationMatrix) -> int:
    """Judge recorded answers by today's statistics; the store keeps the verdicts of the time."""
    recorded = evaluation_comparer.read_recorded_evaluation(arguments.judge_again)
    recorded.command = shlex.join(run_output.strip_output_options(shlex.split(recorded.command)))
    judged = evaluation_comparer.rejudge_recorded(matrix, recorded)
    return _print_evaluation(judged, arguments, stopped=False)


def _print_evaluation(evaluation: Evaluation, arguments: argparse.Namespace, stopped: bool) -> int:

    code = run_output.write_and_print_run(run_kinds.EVAL, evaluation, arguments)
    if stopped:
        options.report_status("stopped")
        return 130
    return code


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _check_numbers(arguments: argparse.Namespace) -> None:
    for name in ("items", "limit", "jobs", "concurrency", "patience"):
        value = vars(arguments)[name]
        if value is not None and value <= 0:
            raise UnfixError(f"--{name} {value} is too small")


def _choose_item_limit(arguments: argparse.Namespace, matrix: EvaluationMatrix) -> int:
    limit = arguments.limit or max(paired_statistics.MAX_ITEMS, matrix.items)
    if limit < matrix.items:
        raise UnfixError(f"--limit {limit} is less than the {matrix.items} items of a task")
    return int(limit)


# What was asked


def _make_matrix(arguments: argparse.Namespace) -> EvaluationMatrix:
    if arguments.matrix:
        single = [name for name in ("model", "draft", "against", "dtype") if vars(arguments)[name]]
        if single or arguments.words:
            raise UnfixError("a matrix file says itself what is served: leave out the other words")
        matrix = matrices.read_matrix(_find_matrix_file(arguments.matrix))
        if arguments.no_faults:
            matrix.faults = []
    else:
        matrix = _make_single_matrix(arguments)
    if arguments.only:
        _select_configurations(matrix, _split_names([arguments.only]))
    if arguments.task:
        matrix.tasks = _split_names(arguments.task)
        for one in matrix.configurations:
            one.tasks = []
        for fault in matrix.faults:
            fault.tasks = []
    for name in ("items", "seed", "device", "concurrency", "release"):
        if vars(arguments)[name] is not None:
            setattr(matrix, name, vars(arguments)[name])
            for one in matrix.configurations:
                if name in ("items", "concurrency"):
                    setattr(one, name, 0)
    if arguments.matrix:
        for word, asked in (
            ("revert", arguments.revert),
            ("enable", arguments.enable),
            ("stand_ins", arguments.stand_in),
        ):
            for one in matrix.configurations:
                if one.engine != TRANSFORMERS_ENGINE:
                    setattr(
                        one, word, list(dict.fromkeys([*getattr(one, word), *_split_names(asked)]))
                    )
    matrices.check_matrix(matrix)
    return matrix


def _find_matrix_file(name: str) -> Path:
    there = paths.project_folder() / matrices.MATRICES_FOLDER / f"{name}.yaml"
    if "/" not in name and there.is_file():
        return there
    file = Path(name)
    if not file.is_file():
        known = sorted(one.stem for one in there.parent.glob("*.yaml"))
        raise UnfixError(f"no matrix is called {name}; there are {', '.join(known)}")
    return file


def _select_configurations(matrix: EvaluationMatrix, names: list[str]) -> None:
    known = {one.name for one in matrix.configurations}
    strange = set(names) - known
    if strange:
        raise UnfixError(f"no configuration is called {', '.join(sorted(strange))}")
    wanted = set(names)
    while (
        more := {base for name in wanted for base in matrix.find_configuration(name).base_names}
        - wanted
    ):
        wanted |= more
    matrix.configurations = [one for one in matrix.configurations if one.name in wanted]
    for fault in matrix.faults:
        fault.where = [name for name in fault.where if name in names]
    matrix.faults = [fault for fault in matrix.faults if fault.where]


def _make_single_matrix(arguments: argparse.Namespace) -> EvaluationMatrix:
    """One configuration, and what it is compared with."""
    device = _choose_device(arguments.device)
    own = shlex.join(arguments.words)
    usual = CPU_SERVER_ARGUMENTS if device == "cpu" else CUDA_SERVER_ARGUMENTS
    model = arguments.model or "llama"
    revert, enable = _split_names(arguments.revert), _split_names(arguments.enable)
    dtype = arguments.dtype or ("float32" if device == "cpu" else "bfloat16")
    one = EvaluationConfiguration(
        "candidate",
        model,
        own,
        draft=arguments.draft or "",
        stand_ins=_split_names(arguments.stand_in),
        revert=revert,
        enable=enable,
    )
    configurations = [one]
    against = arguments.against
    if against is None and (revert or enable):
        base = msgspec.structs.replace(one, name="base", revert=[], enable=[])
        one.like = base.name
    elif against == TRANSFORMERS_ENGINE or (against is None and _is_own_model(model)):
        base = EvaluationConfiguration(TRANSFORMERS_ENGINE, model, engine=TRANSFORMERS_ENGINE)
        one.like = base.name
    elif against is None:
        base = None
    elif any(release.name == against for release in managed_releases.list_releases()) or (
        against == "current"
    ):
        base = msgspec.structs.replace(one, name=against, release=against, revert=[], enable=[])
        one.name = "candidate"
    elif against.startswith("-"):
        base = msgspec.structs.replace(one, name="base", serve=against, revert=[], enable=[])
        if "--speculative" not in against:
            base.draft = ""
    else:
        raise UnfixError(
            f"--against {against} is neither a release nor 'transformers' nor SGLang's arguments"
        )
    if base is not None:
        one.against = base.name
        configurations.insert(0, base)
    return EvaluationMatrix("eval", configurations, serve=usual, dtype=dtype, device=device)


def _is_own_model(model: str) -> bool:
    ours = [paths.project_folder() / place / model for place in matrices.MODEL_FOLDERS]
    return "/" not in model and any(place.is_dir() for place in ours)


def _split_names(words: list[str]) -> list[str]:
    return [name for word in words for name in word.split(",") if name]


def _choose_device(requested: str | None) -> str:
    if requested in ("cpu", "cuda"):
        return requested
    return "cuda" if machine.describe_gpus() else "cpu"


def _prepare_serving(arguments: argparse.Namespace, matrix: EvaluationMatrix) -> ServingSettings:
    device = _choose_device(None if matrix.device == "auto" else matrix.device)
    machine.require_device(device)
    release = matrix.release or _choose_release()
    wanted = {release} | {one.release for one in matrix.configurations if one.release}
    if device == "cuda" and wanted != {"current"}:
        raise NotReadyError(
            "on a GPU a managed release has stand-ins for SGLang's kernels and serves nothing: "
            "--release current, from an environment that has them"
        )
    provisioning.ensure_installed(
        [managed_releases.get_release(name) for name in sorted(wanted - {"current"})],
        options.report_status,
    )
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    identity = f"eval-{now}-{secrets.token_hex(2)}"
    folder = get_evaluation_folder(identity, paths.state_folder())
    folder.mkdir(parents=True)
    toggles = tuple(folder.resolve() for folder in arguments.toggles)
    patience, within = arguments.patience, float(matrix.within)
    return ServingSettings(device, release, folder, toggles, arguments.afresh, patience, within)


def _choose_release() -> str:
    from harness.releases import source_trees

    if source_trees.find_installed_tree() is not None:
        return "current"
    return (managed_releases.find_default_release() or managed_releases.get_newest_release()).name


def _check_models_exist(matrix: EvaluationMatrix) -> None:
    for one in matrix.configurations:
        if not one.absent:
            for name in filter(None, (one.model, one.draft)):
                model_folders.find_model_folder(name)
