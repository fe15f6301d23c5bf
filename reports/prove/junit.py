"""A proof as JUnit XML, which GitLab, Jenkins and GitHub's viewers read: a suite per release."""

from __future__ import annotations

import re
import shlex
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

from harness.core.files import write_atomically
from harness.core.outcomes import Verdict
from harness.store.prove.values import CellResult, ProveRun
from reports.prove import marks, view
from reports.prove.view import ProofView, ReleaseColumn
from reports.shared import formatting

# XML 1.0 cannot represent these, not even as an escape.
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(runs: ProveRun | Sequence[ProveRun], file: Path) -> None:
    proof_view = view.make_view(runs)
    root = ElementTree.Element("testsuites", name="unfix")
    for column in proof_view.columns:
        cells = [c for c in proof_view.run.cells if (c.release, c.device) == column.key]
        root.append(make_suite_element(proof_view, column, cells))
    # Problems of no release: the run was stopped, met no release, or no guard applied.
    in_suites = tuple(f"{column.release}: " for column in proof_view.columns)
    problems = [
        problem
        for problem in proof_view.other_problems
        if not problem.startswith(in_suites) and not problem.endswith("no verdict")
    ]
    problems += [] if proof_view.columns else ["the run met no release"]
    if problems:
        whole_run = add_element(root, "testsuite", name="unfix", time="0.000")
        for problem in dict.fromkeys(problems):
            whole_run.append(make_problem_element("run", problem))
        set_totals(whole_run)
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    root.set("time", f"{proof_view.run.seconds:.3f}")
    ElementTree.indent(root)
    write_atomically(file, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def make_suite_element(
    proof_view: ProofView, column: ReleaseColumn, cells: Sequence[CellResult]
) -> ElementTree.Element:
    suite = make_element(
        "testsuite",
        name=f"SGLang {column.release} on {column.device}",
        time=f"{column.facts.seconds:.3f}",
        timestamp=proof_view.run.started,
    )
    properties = add_element(suite, "properties")
    facts = {
        "run": proof_view.run.id,
        "command": shlex.join(proof_view.run.command),
        "release": column.release,
        "device": column.device,
        **{f"machine.{name}": value for name, value in column.facts.machine.items()},
        **{f"version.{name}": value for name, value in column.facts.versions.items()},
    }
    for name, value in facts.items():
        add_element(properties, "property", name=name, value=str(value))
    suite.extend(make_case_element(cell) for cell in cells)
    suite.extend(make_problem_element("collection", text) for text in column.facts.problems)
    for toggle in column.facts.unguarded or ():
        suite.append(make_problem_element("unguarded", f"no guard names {toggle}"))
    set_totals(suite)
    return suite


def set_totals(suite: ElementTree.Element) -> None:
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(sum(case.find(tag) is not None for case in cases)))


def make_case_element(cell: CellResult) -> ElementTree.Element:
    file = marks.get_guard_file(cell.guard)
    case = make_element(
        "testcase",
        classname=file.removesuffix(".py").replace("/", "."),
        name=f"{marks.get_test_name(cell.guard)}[{cell.toggle}]",
        file=file,
        time=f"{cell.seconds:.3f}",
    )
    word = marks.get_verdict_word(cell.verdict)
    if cell.verdict is Verdict.NA:
        add_element(case, "skipped", message=f"n/a: {cell.why}")
    elif not (cell.verdict and cell.verdict.is_good):
        failure = add_element(case, "failure", type=word, message=describe_failure(cell))
        failure.text = strip_forbidden(describe_sides(cell))
    output = "\n".join(f"[{s.side}]\n{s.output}" for s in view.sort_sides(cell) if s.output)
    if output:
        add_element(case, "system-out").text = strip_forbidden(output)
    return case


def make_problem_element(kind: str, problem: str) -> ElementTree.Element:
    """Make a test of a problem that is no cell, so that no viewer shows green."""
    headline = problem.split("\n")[0]
    case = make_element("testcase", classname=f"unfix.{kind}", name=headline, time="0.000")
    failure = add_element(case, "failure", type=kind, message=headline)
    failure.text = strip_forbidden(problem)
    return case


def describe_failure(cell: CellResult) -> str:
    side = view.choose_decisive_side(cell)
    word = marks.get_verdict_word(cell.verdict)
    reason = cell.why or (side.headline if side else "") or marks.MARKS[word].meaning
    return f"{cell.toggle} on {cell.release}: {word}: {reason}"


def describe_sides(cell: CellResult) -> str:
    """Describe everything known about each side, as lines of a log."""
    parts = [marks.MARKS[marks.get_verdict_word(cell.verdict)].meaning, cell.why]
    for side in view.sort_sides(cell):
        parts.append(f"\n{marks.describe_side(side.side, side.outcome, side.reach)}")
        parts += [view.describe_repeats(side), side.headline, *side.example, side.detail]
        parts += [f"replay: {side.replay}"] if side.replay else []
    return "\n".join(part for part in parts if part)


def add_element(parent: ElementTree.Element, tag: str, **attributes: str) -> ElementTree.Element:
    element = make_element(tag, **attributes)
    parent.append(element)
    return element


def make_element(tag: str, **attributes: str) -> ElementTree.Element:
    return ElementTree.Element(tag, {k: strip_forbidden(v) for k, v in attributes.items()})


def strip_forbidden(text: str) -> str:
    return FORBIDDEN.sub("", formatting.TERMINAL_COLOURS.sub("", text))
