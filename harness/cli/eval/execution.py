"""The execution of `unfix eval`: makes a request, and runs, stores and prints the evaluation."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import signal

from harness.cli import guard_runs, options, run_output
from harness.cli.commands import KINDS
from harness.cli.process_cleanup import raise_interrupt
from harness.core import machine
from harness.core.wording import format_count
from harness.matrices.schema import MatrixFile
from harness.releases import managed_releases
from harness.releases.server_arguments import refuse_unknown_arguments
from harness.runs.eval import evaluation_comparer, evaluation_request, lm_eval_scorer
from harness.runs.eval.evaluation_request import EvaluationRequest
from harness.runs.eval.runner import EvaluationRunner, begin_evaluation
from harness.store.eval.table import EvalTable
from harness.store.eval.values import Evaluation


def make_request(arguments: argparse.Namespace) -> EvaluationRequest:
    return dataclasses.replace(
        options.make_request(EvaluationRequest, arguments),
        against=guard_runs.name_release(arguments.against),
        release=guard_runs.name_release(arguments.release),
    )


def run_evaluation(arguments: argparse.Namespace) -> int:
    run_output.check_outputs(KINDS["eval"], arguments)
    request = make_request(arguments)
    matrix = evaluation_request.make_matrix(request)
    matrix.release = guard_runs.name_release(matrix.release) or ""
    for configuration in matrix.configurations:
        configuration.release = guard_runs.name_release(configuration.release) or ""
    if arguments.judge_again is not None:
        # Today's statistics judge recorded answers again; the store's verdicts do not change.
        recorded = evaluation_comparer.read_recorded_evaluation(arguments.judge_again)
        command = run_output.strip_output_options(shlex.split(recorded.command))
        recorded.command = shlex.join(command)
        judged = evaluation_comparer.rejudge_recorded(matrix, recorded)
        return run_output.write_and_print_run(KINDS["eval"], judged, arguments)
    evaluation, is_interrupted = _serve_matrix(request, matrix)
    code = run_output.write_and_print_run(KINDS["eval"], evaluation, arguments)
    if is_interrupted:
        options.report_status("stopped")
        return 130
    return code


def _serve_matrix(request: EvaluationRequest, matrix: MatrixFile) -> tuple[Evaluation, bool]:
    """Serve the matrix; return the stored evaluation, and whether it was interrupted."""
    from harness.store.database import Store

    limit = request.choose_item_limit(matrix)
    settings = evaluation_request.prepare_serving(request, matrix, options.report_status)
    if request.words:
        sources = managed_releases.open_release_tree(settings.release)
        refuse_unknown_arguments(request.words, sources)
    releases = {settings.release, *(one.release for one in matrix.configurations)}
    guard_runs.mend_for_named_releases(sorted(releases), request.toggles, settings.device)
    lm_eval_scorer.find_lm_eval_python()  # installs lm-eval before the first server starts
    store = Store()
    command = shlex.join(run_output.get_recorded_command())
    evaluation = begin_evaluation(matrix, settings, settings.folder.name, command)
    python = settings.get_python(settings.release)
    evaluation.machine = machine.describe_machine(str(python))
    options.report_status(
        f"{format_count(len(matrix.configurations), 'configuration')} on {settings.device} with "
        f"SGLang {settings.release}, {matrix.items} items a task"
        + (f", {format_count(len(matrix.faults), 'fault')}" if matrix.faults else "")
    )
    EvalTable(store).save(evaluation)

    def save_progress(evaluation: Evaluation, text: str) -> None:
        options.report_status(text)
        EvalTable(store).save(evaluation)

    signal.signal(signal.SIGTERM, raise_interrupt)  # schedulers send it; servers end first
    runner = EvaluationRunner(
        matrix,
        settings,
        evaluation,
        jobs=request.job_count,
        max_items=limit,
        on_progress=save_progress,
    )
    try:
        runner.execute()
    except KeyboardInterrupt as stop:
        options.report_notes(stop)
        return evaluation, True
    finally:
        EvalTable(store).save(evaluation)
    return evaluation, False
