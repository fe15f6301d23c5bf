"""The tests that a review proposes: the smallest programs that show what it found.

A kernel's test is its smallest launch with one element of the earlier answer. A lifecycle's is the
program of operations that Hypothesis shrank, which its guard writes as a script into its example.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from harness.store.pr.part_results import GuardChange, get_test_name
from harness.store.pr.values import PrRun

SCRIPT_START = "# ./unfix exec"  # the first line of a script in an example


def list_tests(run: PrRun) -> dict[str, str]:
    """List the proposed tests of a review, by the names of their files."""
    return dict([*_iterate_kernel_tests(run), *_iterate_script_tests(run)])


def _iterate_kernel_tests(run: PrRun) -> Iterator[tuple[str, str]]:
    for kernel in run.kernels:
        if kernel.test:
            yield f"test_{kernel.kernel.partition(':')[2].strip('_')}.py", kernel.test


def _iterate_script_tests(run: PrRun) -> Iterator[tuple[str, str]]:
    for guard in run.guards:
        script = find_script(guard) if guard.is_worse else []
        if script:
            name = get_test_name(guard.guard).rpartition("::")[2]
            imports = [line for line in script if line.startswith("from ")]
            body = [line for line in script if line not in imports and line[:1] != "#"]
            yield (
                f"{name}.py",
                "\n".join(
                    [
                        f'"""{guard.headline.strip()}"""',
                        "",
                        *imports,
                        "",
                        "",
                        f"def {name}() -> None:",
                        textwrap.indent("\n".join(body), "    "),
                        "",
                    ]
                ),
            )


def find_script(guard: GuardChange) -> list[str]:
    """Return the lines of the script in a guard's example; none if it has no script."""
    starts = [number for number, line in enumerate(guard.example) if line.startswith(SCRIPT_START)]
    if not starts:
        return []
    script = guard.example[starts[0] :]
    ends = [number for number, line in enumerate(script) if line.rstrip().endswith(".run()")]
    return script[: ends[0] + 1] if ends else []
