"""`unfix doctor`: what this machine has, what is missing, what stands in for it."""

from __future__ import annotations

import argparse
import importlib.util
import platform
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from harness import machine as hardware
from harness import paths
from harness.cli import options
from harness.cli.releases import state_of
from harness.errors import UnfixError
from harness.releases import install, managed, sources, standing
from harness.releases.managed import Release


@dataclass(frozen=True)
class Line:
    """One thing that was looked at."""

    name: str
    ok: bool | None  # None: a fact, neither good nor bad
    found: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    lines = [*machine(), *registry(), *releases(), *standins()]
    if arguments.json:
        options.print_json([vars(line) for line in lines])
    else:
        from rich.table import Table
        from rich.text import Text

        marks = {True: ("ok", "green"), False: ("NO", "bold red"), None: ("", "")}
        grid = Table(box=None, pad_edge=False, show_header=False)
        for line in lines:
            grid.add_row(line.name, Text(*marks[line.ok]), line.found)
        options.console().print(grid)
    return 3 if any(line.ok is False for line in lines) else 0


def machine() -> list[Line]:
    version = sys.version_info[:2]
    lacking = install.lacking(version)
    if version not in install.PYTHONS:
        lacking = f"managed releases need {install.pythons()}"
    place = next(p for p in (paths.workspace(), *paths.workspace().parents) if p.exists())
    free = shutil.disk_usage(place).free / 2**30
    return [
        Line(
            "python",
            version in install.PYTHONS,
            f"{platform.python_version()} at {sys.executable}"
            + (f"; {lacking}" if lacking else ""),
        ),
        Line("platform", None, f"{platform.system()} {platform.machine()}"),
        Line("pip", *_pip()),
        Line("disk", free > 1, f"{free:.0f} GiB free under {paths.workspace()}"),
        Line("gpu", None, _gpu()),
    ]


def _pip() -> tuple[bool, str]:
    found = importlib.util.find_spec("pip") is not None
    return found, "there" if found else f"missing: {sys.executable} -m ensurepip"


def _gpu() -> str:
    return hardware.gpu() or "none: CUDA guards are n/a here"


def registry() -> list[Line]:
    from harness.registry import catalogue

    try:
        return [Line("toggles", True, f"{len(catalogue.load())} in {paths.toggles()}")]
    except UnfixError as error:
        return [Line("toggles", False, str(error))]


def releases() -> list[Line]:
    current = sources.current()
    found = [
        Line(
            "current",
            None,
            f"SGLang {current.version} in {current.folder}"
            if current
            else "no SGLang in this python",
        )
    ]
    for device in managed.DEVICES:
        found += _environments(managed.all_releases(device), device)
    missing = [r.name for r in managed.all_releases() if not r.folder.exists()]
    if missing:
        found.append(Line("not installed", None, ", ".join(missing)))
    return found


STAND_INS = (
    (install.STANDINS, "always"),
    (install.STANDINS_CUDA, "for CUDA"),
    (install.STANDINS_NPU, "for NPU suites"),
)


def _environments(known: Sequence[Release], device: str) -> list[Line]:
    base = known[0].base
    found = []
    option = "" if device == "cpu" else f" --device {device}"
    if base.folder.exists():
        whole = base.is_current()
        remedy = f"unfix releases add VERSION{option} makes it anew"
        says = f"{base.folder} is cut short or outdated: {remedy}"
        if whole:
            says = f"{base.folder}{f', beside {base.beside}' if base.beside else ''}"
        found.append(Line(base.folder.name, whole, says))
    for release in known:
        state = state_of(release)
        name = f"release {release.folder.name}"
        if state == "yes":
            found.append(Line(name, True, str(release.folder)))
        elif state != "no":
            found.append(Line(name, False, f"{state}: unfix releases add {release.name}{option}"))
    return found


def standins() -> list[Line]:
    """What imports in a release's environment without being there."""
    lines = []
    for folder, when in STAND_INS:
        for name in standing.names(folder):
            real = sorted(paths.releases().glob(f"*/lib/python*/site-packages/{name}"))
            says = f"a stand-in that refuses to be called, {when}"
            if real:
                says = f"{', '.join(map(str, real))} (real)"
            lines.append(Line(f"stands in: {name}", None, says))
    return lines
