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

from harness import machine, paths
from harness.cli import kinds, options, pages
from harness.errors import NotReady, UnfixError
from harness.eval import matrix as matrices
from harness.eval import models, paired, scorer
from harness.eval.asking import Where
from harness.eval.matrix import REFERENCE, Configuration, Matrix
from harness.eval.run import Run, begin, folder_of
from harness.releases import having, managed
from harness.store.eval.values import Evaluation

CPU_SERVE = (
    "--attention-backend torch_native --disable-cuda-graph --disable-overlap-schedule "
    "--sleep-on-idle --mem-fraction-static 0.5 --max-total-tokens 8192"
)
CUDA_SERVE = "--mem-fraction-static 0.2"


def run(arguments: argparse.Namespace) -> int:
    from harness.store.database import Store

    pages.check(kinds.EVAL, arguments)
    _numbers(arguments)
    matrix = _matrix(arguments)
    if arguments.judge_again is not None:
        return _judge_again(arguments, matrix)
    limit = _limit(arguments, matrix)
    _models_are_there(matrix)
    where = _where(arguments, matrix)  # fetches the release, if it is not there
    scorer.python()  # installs lm-eval if need be, before anything is served
    store = Store()
    identity = where.folder.name
    new = begin(matrix, where, identity, shlex.join(pages.command()))
    new.machine = machine.told(str(where.python(where.release)))
    options.say(
        f"{_many(len(matrix.configurations), 'configuration')} on {where.device} with SGLang "
        f"{where.release}, {matrix.items} items a task"
        + (f", {_many(len(matrix.faults), 'fault')}" if matrix.faults else "")
    )
    store.eval.save(new)

    def saw(evaluation: Evaluation, what: str) -> None:
        options.say(what)
        store.eval.save(evaluation)

    jobs = arguments.jobs or max(1, min(4, (os.cpu_count() or 2)))
    # As all whom a scheduler ends: the servers go first.
    signal.signal(signal.SIGTERM, _stop)
    going = Run(matrix, where, new, jobs=jobs, limit=limit, saw=saw)
    stopped = False
    try:
        done = going.go()
    except KeyboardInterrupt as stop:
        options.say_notes(stop)
        done, stopped = new, True
    finally:
        store.eval.save(new)
    return _show(done, arguments, stopped)


def _judge_again(arguments: argparse.Namespace, matrix: Matrix) -> int:
    """The same answers by today's statistics; the store keeps what was said at the time."""
    from harness.eval.again import Again, read

    recorded = read(arguments.judge_again)
    recorded.command = shlex.join(pages.asked(shlex.split(recorded.command)))
    toggles = tuple(folder.resolve() for folder in arguments.toggles)
    where = Where(recorded.device, "", paths.state(), toggles, False, arguments.patience)
    return _show(Again(matrix, where, recorded).go(), arguments, False)


def _show(done: Evaluation, arguments: argparse.Namespace, stopped: bool) -> int:

    code = pages.finish(kinds.EVAL, done, arguments)
    if stopped:
        options.say("stopped")
        return 130
    return code


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _numbers(arguments: argparse.Namespace) -> None:
    for name in ("items", "limit", "jobs", "concurrency", "patience"):
        value = vars(arguments)[name]
        if value is not None and value <= 0:
            raise UnfixError(f"--{name} {value} is too small")


def _limit(arguments: argparse.Namespace, matrix: Matrix) -> int:
    limit = arguments.limit or max(paired.LIMIT, matrix.items)
    if limit < matrix.items:
        raise UnfixError(f"--limit {limit} is less than the {matrix.items} items of a task")
    return int(limit)


# What was asked


def _matrix(arguments: argparse.Namespace) -> Matrix:
    if arguments.matrix:
        single = [name for name in ("model", "draft", "against", "dtype") if vars(arguments)[name]]
        if single or arguments.words:
            raise UnfixError("a matrix file says itself what is served: leave out the other words")
        matrix = matrices.read(_file(arguments.matrix))
        if arguments.no_faults:
            matrix.faults = []
    else:
        matrix = _single(arguments)
    if arguments.only:
        _only(matrix, _split([arguments.only]))
    if arguments.task:
        matrix.tasks = _split(arguments.task)
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
                if one.engine != REFERENCE:
                    setattr(one, word, list(dict.fromkeys([*getattr(one, word), *_split(asked)])))
    matrices.check(matrix)
    return matrix


def _file(name: str) -> Path:
    there = paths.project() / matrices.FOLDER / f"{name}.yaml"
    if "/" not in name and there.is_file():
        return there
    file = Path(name)
    if not file.is_file():
        known = sorted(one.stem for one in there.parent.glob("*.yaml"))
        raise UnfixError(f"no matrix is called {name}; there are {', '.join(known)}")
    return file


def _only(matrix: Matrix, names: list[str]) -> None:
    known = {one.name for one in matrix.configurations}
    strange = set(names) - known
    if strange:
        raise UnfixError(f"no configuration is called {', '.join(sorted(strange))}")
    wanted = set(names)
    while more := {base for name in wanted for base in matrix.one(name).bases} - wanted:
        wanted |= more
    matrix.configurations = [one for one in matrix.configurations if one.name in wanted]
    for fault in matrix.faults:
        fault.where = [name for name in fault.where if name in names]
    matrix.faults = [fault for fault in matrix.faults if fault.where]


def _single(arguments: argparse.Namespace) -> Matrix:
    """One configuration, and what it is compared with."""
    device = _device(arguments.device)
    own = shlex.join(arguments.words)
    usual = CPU_SERVE if device == "cpu" else CUDA_SERVE
    model = arguments.model or "llama"
    revert, enable = _split(arguments.revert), _split(arguments.enable)
    dtype = arguments.dtype or ("float32" if device == "cpu" else "bfloat16")
    one = Configuration(
        "candidate",
        model,
        own,
        draft=arguments.draft or "",
        stand_ins=_split(arguments.stand_in),
        revert=revert,
        enable=enable,
    )
    configurations = [one]
    against = arguments.against
    if against is None and (revert or enable):
        base = msgspec.structs.replace(one, name="base", revert=[], enable=[])
        one.like = base.name
    elif against == REFERENCE or (against is None and _is_ours(model)):
        base = Configuration(REFERENCE, model, engine=REFERENCE)
        one.like = base.name
    elif against is None:
        base = None
    elif any(release.name == against for release in managed.all_releases()) or (
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
    return Matrix("eval", configurations, serve=usual, dtype=dtype, device=device)


def _is_ours(model: str) -> bool:
    ours = [paths.project() / place / model for place in matrices.MODELS]
    return "/" not in model and any(place.is_dir() for place in ours)


def _split(words: list[str]) -> list[str]:
    return [name for word in words for name in word.split(",") if name]


def _device(asked: str | None) -> str:
    if asked in ("cpu", "cuda"):
        return asked
    return "cuda" if machine.gpu() else "cpu"


def _where(arguments: argparse.Namespace, matrix: Matrix) -> Where:
    device = _device(None if matrix.device == "auto" else matrix.device)
    machine.require(device)
    release = matrix.release or _release()
    wanted = {release} | {one.release for one in matrix.configurations if one.release}
    if device == "cuda" and wanted != {"current"}:
        raise NotReady(
            "on a GPU a managed release has stand-ins for SGLang's kernels and serves nothing: "
            "--release current, from an environment that has them"
        )
    having.ready([managed.get(name) for name in sorted(wanted - {"current"})], options.say)
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    identity = f"eval-{now}-{secrets.token_hex(2)}"
    folder = folder_of(identity, paths.state())
    folder.mkdir(parents=True)
    toggles = tuple(folder.resolve() for folder in arguments.toggles)
    patience, within = arguments.patience, float(matrix.within)
    return Where(device, release, folder, toggles, arguments.afresh, patience, within)


def _release() -> str:
    from harness.releases import sources

    if sources.current() is not None:
        return "current"
    return (managed.default() or managed.newest()).name


def _models_are_there(matrix: Matrix) -> None:
    for one in matrix.configurations:
        if not one.absent:
            for name in filter(None, (one.model, one.draft)):
                models.folder(name)
