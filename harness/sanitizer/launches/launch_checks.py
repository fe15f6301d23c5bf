"""Opens the checks of launches in this process, on the device that it has."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from harness.sanitizer.device import installation
from harness.sanitizer.launches import stream_check
from harness.sanitizer.launches.launch_tracer import LaunchTracer
from harness.sanitizer.violations.exceptions import Violation


class LaunchSource(Protocol):
    """The source of a device's events for a tracer, from `open` to `close`."""

    def open(self) -> None: ...

    def close(self) -> None: ...


@contextlib.contextmanager
def trace_launches(
    checks: Sequence[str], report: Callable[[Violation], None]
) -> Iterator[LaunchTracer]:
    """Check the launches of this process while the block runs; `report` may raise."""
    tracer, source = _make_source(checks, report)
    with run_tracer(tracer, source):
        yield tracer


@contextlib.contextmanager
def run_tracer(tracer: LaunchTracer, source: LaunchSource) -> Iterator[None]:
    """Let a source tell a tracer of launches while the block runs.

    What is still to be confirmed when the block raises an error becomes a note of that error.
    """
    with contextlib.closing(source):
        source.open()
        try:
            yield
        except BaseException as error:
            try:
                tracer.finish()
            except Violation as violation:
                error.add_note(f"a check reports as well: {violation}")
            except Exception as failure:
                error.add_note(f"the checks failed at their end: {failure}")
            raise
        tracer.finish()


def start_tracing(checks: Sequence[str], report: Callable[[Violation], None]) -> LaunchTracer:
    """Check the launches of this process until its end."""
    tracer, source = _make_source(checks, report)
    source.open()
    return tracer


def _make_source(
    checks: Sequence[str], report: Callable[[Violation], None]
) -> tuple[LaunchTracer, LaunchSource]:
    if installation.is_installed():
        from harness.sanitizer.launches.virtual_source import VirtualClocks, VirtualSource

        # Memory is not handed out as on a GPU here, so a block of a fitting size counts as reused.
        tracer = LaunchTracer(checks, VirtualClocks(), report, stream_check.has_fitting_size)
        return tracer, VirtualSource(tracer)
    from harness.sanitizer.launches.card_source import CardClocks, CardSource

    clocks = CardClocks()
    tracer = LaunchTracer(checks, clocks, report, stream_check.has_same_memory)
    return tracer, CardSource(tracer, clocks)
