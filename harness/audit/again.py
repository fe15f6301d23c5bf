"""The findings of an audit run again on a GPU; and an audit read from its record."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import machine, paths
from harness.audit.findings import (
    CONFIRMED,
    NO_TIME,
    Argument,
    Audited,
    Finding,
    Kind,
    Reach,
    Trial,
    Verdict,
    judged,
    sifted,
)
from harness.audit.run import Audit
from harness.errors import NotReady, UnfixError


def recorded(file: Path) -> Audit:
    """What `unfix audit --record` wrote."""
    try:
        content = file.read_bytes()
        data = json.loads(gzip.decompress(content) if file.suffix == ".gz" else content)
        kernels = tuple(map(_audited, data["kernels"]))
        return Audit(data["release"], kernels, data["limits"], len(kernels), data["seconds"])
    except OSError as error:
        raise UnfixError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UnfixError(f"{file} is no record that this `unfix audit --record` wrote") from error


def _audited(data: dict[str, Any]) -> Audited:
    findings = tuple(map(_finding, data["findings"]))
    more = {"verdict": Verdict(data["verdict"]), "reasons": tuple(data["reasons"])}
    return Audited(**data | more | {"findings": findings})


def _finding(data: dict[str, Any]) -> Finding:
    more = {
        "kind": Kind(data["kind"]),
        "constants": tuple(data["constants"]),
        "reaches": tuple(Reach(**one) for one in data["reaches"]),
        "trials": tuple(map(_trial, data["trials"])),
    }
    return Finding(**data | more)


def _trial(data: dict[str, Any]) -> Trial:
    arguments = (
        Argument(**one | {"holds": tuple(one["holds"]) if one["holds"] else None})
        for one in data["arguments"]
    )
    return Trial(tuple(data["grid"]), tuple(data["program"]), tuple(arguments))


def on_gpu(
    found: Audit,
    place: Path,
    jobs: int,
    seconds: float,
    say: Callable[[str], None],
    known: Audit | None = None,
) -> Audit:
    """With what launches on this machine's GPU showed of each finding.

    `known`: launches that an earlier run on such a GPU made are not made again.
    """
    machine.require("cuda")
    if importlib.util.find_spec("torch") is None:
        raise NotReady(
            f"{sys.executable} has no torch: run `python -m harness audit …` by a Python that has "
            "torch and Triton for this GPU"
        )
    name = machine.gpu().split(",")[0]
    before = _shown(known, found, name) if known is not None else {}
    asked = [one for one in found.findings if one.trials and _where(one) not in before]
    say(f"running {len(asked)} findings on one {name}")
    told: dict[tuple[str, ...], str] = {}
    for number, words in _answers(asked, place, jobs, seconds):
        told[_where(asked[number])] = words
        if len(told) % 50 == 0:
            say(f"{len(told)} of {len(asked)} findings")

    def seen(one: Finding) -> Finding:
        if earlier := before.get(_where(one)):
            shown = earlier.confirmed if earlier.confirmed.endswith(name) else one.confirmed
            return replace(one, confirmed=shown, on_gpu=earlier.on_gpu)
        words = told.get(_where(one), "its launch was not kept")
        if words.startswith(CONFIRMED):
            on_gpu = words.replace(CONFIRMED, name, 1)
            return replace(one, confirmed=f"{CONFIRMED} on an {name}", on_gpu=on_gpu)
        return replace(one, on_gpu=f"{name}: {words}")

    def shown(kernel: Audited) -> Audited:
        if not kernel.findings:
            return kernel
        findings, reasons = sifted(map(seen, kernel.findings), kernel.reasons)
        verdict = judged(findings, reasons)
        return replace(kernel, findings=findings, reasons=reasons, verdict=verdict)

    return replace(found, kernels=tuple(map(shown, found.kernels)), gpu=machine.told())


def _shown(known: Audit, found: Audit, name: str) -> dict[tuple[str, ...], Finding]:
    """Of which findings the launches were made on such a GPU, the same ones; less what it had no
    time for."""
    if known.release != found.release:
        raise UnfixError(f"--known is of {known.release}, and --again of {found.release}")
    launches = {_where(one): one.trials for one in found.findings}
    return {
        where: one
        for one in known.findings
        if one.on_gpu.startswith(name)
        and not one.on_gpu.endswith(NO_TIME)
        and launches.get(where := _where(one)) == one.trials
    }


def _where(one: Finding) -> tuple[str, ...]:
    return one.kind, one.file, str(one.line), one.text, one.kernel


def _answers(
    asked: list[Finding], place: Path, jobs: int, seconds: float
) -> Iterator[tuple[int, str]]:
    """By number, as they come."""
    order = sorted(enumerate(asked), key=lambda one: one[1].nearness)
    given = {"findings": order, "place": place, "jobs": jobs, "seconds": seconds}
    environment = os.environ | {
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(paths.project()), os.environ.get("PYTHONPATH", "")]),
    }
    log = paths.state() / "audit.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    many = 0
    with log.open("wb") as noise:  # whatever Triton prints
        process = subprocess.Popen(
            [sys.executable, "-m", "harness.audit.device"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            env=environment,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(pickle.dumps(given))
    process.stdin.close()
    with process.stdout as answers:
        for line in answers:
            number, words = json.loads(line)
            many += 1
            yield number, words
    process.wait()
    if many != len(asked):
        raise NotReady(f"the GPU's run was cut short at {many} of {len(asked)} findings: see {log}")
