"""A run as JUnit XML, which GitLab, Jenkins and GitHub's viewers take: a suite for each release."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

from harness.store.prove.values import CellResult, CellVerdict, ProveRun
from reports.prove import view
from reports.prove.view import ProofView, ReleaseColumn
from reports.shared import formatting

# XML 1.0 has no way to hold these, not even as an escape.
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(runs: ProveRun | Sequence[ProveRun], file: Path) -> None:
    seen = view.make_view(runs)
    root = ElementTree.Element("testsuites", name="unfix")
    for column in seen.columns:
        cells = [c for c in seen.run.cells if (c.release, c.device) == column.key]
        root.append(make_suite_element(seen, column, cells))
    # What no suite can show: a run that was stopped, that met nothing, in which nothing applied.
    told = tuple(f"{column.release}: " for column in seen.columns)
    extra = [
        problem
        for problem in seen.other_problems
        if not problem.startswith(told) and not problem.endswith("no verdict")
    ]
    extra += [] if seen.columns else ["the run met no release"]
    if extra:
        whole = ElementTree.SubElement(root, "testsuite", name="unfix", time="0.000")
        for problem in dict.fromkeys(extra):
            whole.append(make_problem_element("run", problem))
        set_totals(whole)
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    root.set("time", f"{seen.run.seconds:.3f}")
    ElementTree.indent(root)
    file.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(root).write(file, encoding="utf-8", xml_declaration=True)


def make_suite_element(
    proof_view: ProofView, column: ReleaseColumn, cells: Sequence[CellResult]
) -> ElementTree.Element:
    found = ElementTree.Element(
        "testsuite",
        name=strip_forbidden(f"SGLang {column.release} on {column.device}"),
        time=f"{column.release_run.seconds:.3f}",
        timestamp=strip_forbidden(proof_view.run.started),
    )
    properties = ElementTree.SubElement(found, "properties")
    facts = {
        "run": proof_view.run.id,
        "command": " ".join(proof_view.run.command),
        "release": column.release,
        "device": column.device,
        **{f"machine.{name}": value for name, value in column.release_run.machine.items()},
        **{f"version.{name}": value for name, value in column.release_run.versions.items()},
    }
    for name, value in facts.items():
        ElementTree.SubElement(
            properties, "property", name=strip_forbidden(name), value=strip_forbidden(str(value))
        )
    for cell in cells:
        found.append(make_case_element(cell))
    for problem in column.release_run.problems:
        found.append(make_problem_element("collection", problem))
    for toggle in column.release_run.unguarded or ():
        found.append(make_problem_element("unguarded", f"no guard names {toggle}"))
    set_totals(found)
    return found


def set_totals(suite: ElementTree.Element) -> None:
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    suite.set("errors", str(sum(case.find("error") is not None for case in cases)))
    suite.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))


def make_case_element(cell: CellResult) -> ElementTree.Element:
    name = formatting.get_test_name(cell.guard)
    found = ElementTree.Element(
        "testcase",
        classname=strip_forbidden(
            formatting.get_guard_file(cell.guard).removesuffix(".py").replace("/", ".")
        ),
        name=strip_forbidden(f"{name}[{cell.toggle}]"),
        file=strip_forbidden(formatting.get_guard_file(cell.guard)),
        time=f"{cell.seconds:.3f}",
    )
    word = formatting.get_verdict_word(cell.verdict)
    if cell.verdict is CellVerdict.NA:
        ElementTree.SubElement(found, "skipped", message=strip_forbidden(f"n/a: {cell.why}"))
    elif not (cell.verdict and cell.verdict.is_good):
        failure = ElementTree.SubElement(
            found, "failure", type=word, message=strip_forbidden(describe_failure(cell))
        )
        failure.text = strip_forbidden(describe_sides(cell))
    printed = "\n".join(f"[{s.side}]\n{s.output}" for s in view.sort_sides(cell) if s.output)
    if printed:
        ElementTree.SubElement(found, "system-out").text = strip_forbidden(printed)
    return found


def make_problem_element(kind: str, problem: str) -> ElementTree.Element:
    """What is wrong and is no cell is a test of its own, so that no viewer shows green."""
    found = ElementTree.Element(
        "testcase",
        classname=f"unfix.{kind}",
        name=strip_forbidden(problem.split("\n")[0]),
        time="0.000",
    )
    failure = ElementTree.SubElement(found, "failure", type=kind)
    failure.set("message", strip_forbidden(problem.split("\n")[0]))
    failure.text = strip_forbidden(problem)
    return found


def describe_failure(cell: CellResult) -> str:
    side = view.choose_decisive_side(cell)
    word = formatting.get_verdict_word(cell.verdict)
    said = cell.why or (side.headline if side else "") or formatting.MARKS[word].meaning
    return f"{cell.toggle} on {cell.release}: {word}: {said}"


def describe_sides(cell: CellResult) -> str:
    """Everything that was seen of each side, the way a reader of a log wants it."""
    parts = [formatting.MARKS[formatting.get_verdict_word(cell.verdict)].meaning, cell.why]
    for side in view.sort_sides(cell):
        parts.append(f"\n{formatting.describe_side(side.side, side.outcome, side.reach)}")
        parts += [view.describe_repeats(side), side.headline, *side.example, side.detail]
        if side.replay:
            parts.append(f"replay: {side.replay}")
    return "\n".join(part for part in parts if part)


def strip_forbidden(text: str) -> str:
    return FORBIDDEN.sub("", formatting.TERMINAL_COLOURS.sub("", text))
