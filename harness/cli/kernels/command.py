"""`unfix kernels`: lists the kernels of a release, who reaches them, and what would."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from pathlib import Path

from harness.cli import guard_runs, kernel_words, options, run_output
from harness.cli.audit.execution import get_tree_path, open_tree
from harness.core import machine
from harness.core.errors import UnfixError
from harness.core.files import write_atomically
from harness.core.wording import format_count
from harness.releases import cuda_toolkit, managed_releases, provisioning
from harness.releases.managed_releases import CPU_BASE
from harness.releases.source_trees import SGLANG_PACKAGE
from harness.runs.audit.release_audit import DEFAULT_LAUNCHES
from harness.runs.kernels.inventory import list_kernels
from harness.runs.kernels.values import BuildSurvey, KernelInventory
from harness.sanitizer.plugins.for_sglang.recorded_builds import (
    FILE_VARIABLE,
    RECORDED_BUILDS,
    read_recorded_builds,
)
from harness.sanitizer.triton import recorded_launches
from harness.store.record_files import write_record


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a kernel, or a part of a path such as ops/moe (default: all)",
    )
    parser.add_argument("--release", metavar="R", help="a managed release (default: the newest)")
    parser.add_argument(
        "--from", dest="place", type=Path, metavar="PATH", help="a checkout, a wheel or a folder"
    )
    parser.add_argument(
        "--launches",
        type=Path,
        default=DEFAULT_LAUNCHES,
        metavar="FILE",
        help="launches that were recorded with UNFIX_LAUNCHES=FILE (default: those of the suites, "
        "servers and the zoo)",
    )
    parser.add_argument(
        "--add",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="merge these records into the file of --launches first",
    )
    parser.add_argument(
        "--missing", action="store_true", help="list each unreached kernel, by what keeps it out"
    )
    parser.add_argument(
        "--build",
        action="store_true",
        help="build the CUDA modules that runs have asked for, ahead of the next run; NAME is a "
        "part of a loader's name",
    )
    parser.add_argument(
        "--builds",
        type=Path,
        action="append",
        metavar="FILE",
        help="builds that were recorded with UNFIX_CUDA_BUILDS=FILE, again for further files "
        "(default: those of the suites)",
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="builds at once"
    )
    parser.add_argument(
        "--limit",
        type=float,
        metavar="SECONDS",
        help="end a build that takes longer, and name it (default: SGLang's own limit)",
    )
    run_output.add_arguments(parser, junit=False)
    options.add_json(parser)


def run_command(arguments: argparse.Namespace) -> int:
    import msgspec

    from reports.kernels import markdown, page, terminal

    if arguments.release and arguments.place:
        raise UnfixError("--release and --from exclude each other: give one of them")
    if arguments.build:
        return _build_modules(arguments)
    if arguments.add:
        _merge_records(arguments.launches, arguments.add)
    inventory = _list_requested_kernels(arguments)
    data = msgspec.to_builtins(inventory)
    run_output.write_outputs(
        arguments,
        run_output.get_default_page(f"kernels-{guard_runs.make_id_and_start()[0]}"),
        lambda: page.render_page(inventory, machine.describe_commit()),
        lambda: markdown.render_markdown(inventory, arguments.missing),
        data,
    )
    if arguments.json:
        options.print_json(data)
    else:
        terminal.print_inventory(inventory, options.make_console(), arguments.missing)
    return 0


def _build_modules(arguments: argparse.Namespace) -> int:
    import msgspec

    from harness.runs.kernels import cuda_builds

    cuda_toolkit.ensure_toolkit(options.report_status)
    version = arguments.release or managed_releases.get_newest_release().name
    release = managed_releases.get_release(version)
    provisioning.ensure_installed([release], options.report_status)
    files = arguments.builds or [RECORDED_BUILDS]
    builds = [
        build
        for file in files
        for build in read_recorded_builds(file)
        if not arguments.names or any(name in build.name for name in arguments.names)
    ]
    if not builds:
        raise UnfixError(
            f"{', '.join(map(str, files))} records no build of that name: run what needs it with "
            f"{FILE_VARIABLE}=FILE and give the file with --builds"
        )
    options.report_status(f"building {len(builds)} CUDA modules of {release.name}")
    loaders = cuda_builds.list_loaders(release.open_sources())
    obstacles = {
        loader: reason
        for loader, reason in cuda_builds.read_obstacles().items()
        if loader in loaders
    }
    survey = BuildSurvey(release.name, [], loaders, obstacles)
    for result in cuda_builds.build_modules(release, builds, arguments.jobs, arguments.limit):
        survey.results.append(result)
        if arguments.record:  # after each, so that a run that is stopped has what it did
            text = msgspec.json.format(msgspec.json.encode(survey), indent=1).decode()
            write_record(arguments.record, run_output.hide_local_paths(text) + "\n")
        if not arguments.json:
            print(
                f"{result.seconds:6.1f} s  {result.name}  {result.problem or 'built'}", flush=True
            )
    if arguments.json:
        options.print_json(msgspec.to_builtins(survey))
    else:
        for reason, count in Counter(survey.reason_by_loader.values()).most_common():
            print(f"{count:6} not launched  {reason}")
        good = sum(not result.problem for result in survey.results)
        print(
            f"{good} of {len(survey.results)} modules built; of {len(survey.loaders)} loaders "
            f"{len(survey.built_loaders)} build, {len(survey.failure_by_loader)} do not, and "
            f"{len(survey.unrecorded_loaders)} have no recorded arguments; kernels of "
            f"{len(survey.launched_loaders)} were launched"
        )
    return 1 if any(result.problem for result in survey.results) else 0


def _merge_records(file: Path, records: list[Path]) -> None:
    text = recorded_launches.merge_records([file, *records], SGLANG_PACKAGE)
    write_atomically(file, text.encode())
    options.report_status(f"merged into {file}: {', '.join(map(str, records))}")


def _list_requested_kernels(arguments: argparse.Namespace) -> KernelInventory:
    recorded_launches.read_launch_modes(arguments.launches)  # raises an error if it is malformed
    word = arguments.release or managed_releases.get_newest_release().name
    tree = open_tree("", arguments.place) if arguments.place else open_tree(word)
    location = get_tree_path(tree)
    kernel_words.refuse_unknown_words(arguments.names, tree.name, location)
    if not CPU_BASE.is_current():  # the releases' common torch and Triton
        newest = managed_releases.get_newest_release()
        provisioning.ensure_installed([newest], options.report_status)
    version = str(tree.version or tree.name)
    inventory = list_kernels(location, version, arguments.launches, options.report_status)
    if not arguments.names:
        return inventory
    chosen = inventory.select(arguments.names)
    if not chosen.kernels:
        raise UnfixError(
            f"no kernel matches {' '.join(arguments.names)}: `unfix kernels` lists all"
        )
    options.report_meanings(
        {
            word: "in the name or the path of "
            + format_count(len(inventory.select([word]).kernels), "kernel")
            for word in arguments.names
        }
    )
    return chosen
