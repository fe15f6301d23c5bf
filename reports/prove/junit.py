"""A run as JUnit XML, which GitLab, Jenkins and GitHub's viewers take: a suite for each release."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

from harness.store.prove.values import Cell, Run, Verdict
from reports.prove import view
from reports.prove.view import Column, View
from reports.shared import texts

# XML 1.0 has no way to hold these, not even as an escape.
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(runs: Run | Sequence[Run], file: Path) -> None:
    seen = view.make(runs)
    root = ElementTree.Element("testsuites", name="unfix")
    for column in seen.columns:
        cells = [c for c in seen.run.cells if (c.release, c.device) == column.key]
        root.append(suite(seen, column, cells))
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
            whole.append(problem_case("run", problem))
        total(whole)
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    root.set("time", f"{seen.run.seconds:.3f}")
    ElementTree.indent(root)
    file.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(root).write(file, encoding="utf-8", xml_declaration=True)


def suite(seen: View, column: Column, cells: Sequence[Cell]) -> ElementTree.Element:
    found = ElementTree.Element(
        "testsuite",
        name=clean(f"SGLang {column.release} on {column.device}"),
        time=f"{column.on.seconds:.3f}",
        timestamp=clean(seen.run.started),
    )
    properties = ElementTree.SubElement(found, "properties")
    facts = {
        "run": seen.run.id,
        "command": " ".join(seen.run.command),
        "release": column.release,
        "device": column.device,
        **{f"machine.{name}": value for name, value in column.on.machine.items()},
        **{f"version.{name}": value for name, value in column.on.versions.items()},
    }
    for name, value in facts.items():
        ElementTree.SubElement(properties, "property", name=clean(name), value=clean(str(value)))
    for cell in cells:
        found.append(case(cell))
    for problem in column.on.problems:
        found.append(problem_case("collection", problem))
    for toggle in column.on.unguarded or ():
        found.append(problem_case("unguarded", f"no guard names {toggle}"))
    total(found)
    return found


def total(suite: ElementTree.Element) -> None:
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    suite.set("errors", str(sum(case.find("error") is not None for case in cases)))
    suite.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))


def case(cell: Cell) -> ElementTree.Element:
    name = texts.short_guard(cell.guard)
    found = ElementTree.Element(
        "testcase",
        classname=clean(texts.guard_file(cell.guard).removesuffix(".py").replace("/", ".")),
        name=clean(f"{name}[{cell.toggle}]"),
        file=clean(texts.guard_file(cell.guard)),
        time=f"{cell.seconds:.3f}",
    )
    word = texts.word_of(cell.verdict)
    if cell.verdict is Verdict.NA:
        ElementTree.SubElement(found, "skipped", message=clean(f"n/a: {cell.why}"))
    elif not (cell.verdict and cell.verdict.good):
        failure = ElementTree.SubElement(found, "failure", type=word, message=clean(message(cell)))
        failure.text = clean(detail(cell))
    printed = "\n".join(f"[{s.side}]\n{s.output}" for s in view.sides(cell) if s.output)
    if printed:
        ElementTree.SubElement(found, "system-out").text = clean(printed)
    return found


def problem_case(kind: str, problem: str) -> ElementTree.Element:
    """What is wrong and is no cell is a test of its own, so that no viewer shows green."""
    found = ElementTree.Element(
        "testcase", classname=f"unfix.{kind}", name=clean(problem.split("\n")[0]), time="0.000"
    )
    failure = ElementTree.SubElement(found, "failure", type=kind)
    failure.set("message", clean(problem.split("\n")[0]))
    failure.text = clean(problem)
    return found


def message(cell: Cell) -> str:
    side = view.telling(cell)
    word = texts.word_of(cell.verdict)
    said = cell.why or (side.headline if side else "") or texts.MARKS[word].meaning
    return f"{cell.toggle} on {cell.release}: {word}: {said}"


def detail(cell: Cell) -> str:
    """Everything that was seen of each side, the way a reader of a log wants it."""
    parts = [texts.MARKS[texts.word_of(cell.verdict)].meaning, cell.why]
    for side in view.sides(cell):
        parts.append(f"\n{texts.happened(side.side, side.outcome, side.reach)}")
        parts += [view.repeated(side), side.headline, *side.example, side.detail]
        if side.replay:
            parts.append(f"replay: {side.replay}")
    return "\n".join(part for part in parts if part)


def clean(text: str) -> str:
    return FORBIDDEN.sub("", texts.COLOURS.sub("", text))
