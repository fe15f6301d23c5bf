"""A slice inside its own process: one test, for some seconds.

Each example is written to the slice's note before it runs, so the note identifies an example that
ends the process. Slice 7 has these files in the worker's folder: `7.note` (the present example),
`7.found` (the failures so far) and `7.sliced` (the result).
"""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import StopTest, UnsatisfiedAssumption
from hypothesis.strategies import DataObject

from harness.core.errors import NotReadyError
from harness.core.files import write_atomically
from harness.core.outcomes import Outcome
from harness.guards import hypothesis_adapter, run_item
from harness.runs.fuzz import failure_identity, search_targets
from harness.runs.fuzz.example_corpus import ExampleCorpus
from harness.runs.fuzz.failure_files import describe_arguments
from harness.runs.fuzz.messages import ExampleNote, TimeSlice, TimeSliceResult
from harness.runs.fuzz.search_engine import use_fuzz_engine
from harness.store.fuzz.values import FoundFailure
from harness.store.prove.values import SideResult
from harness.workers import device_tests
from harness.workers.line_tracer import LineTracer, select_listed_files

FULLY_TRACED_EXAMPLES = 30  # number of first examples of a test that are all traced
TRACED_FRACTION = 4  # one in so many later examples is traced
# Exceptions by which Hypothesis and pytest control a test, not failures.
CONTROL_FLOW_EXCEPTIONS = (
    StopTest,
    UnsatisfiedAssumption,
    KeyboardInterrupt,
    pytest.skip.Exception,
)


class TimeSliceRun:
    """One slice of one test, and its result."""

    def __init__(self, item: Any, time_slice: TimeSlice, folder: Path, files: list[str]) -> None:
        self.item = item
        self.time_slice = time_slice
        self.folder = folder
        self.files = files
        self.tracer = LineTracer(select_listed_files(files))
        self.started = time.monotonic()
        self.examples = 0
        self.known_failures: Counter[str] = Counter()
        self.targets: dict[str, float] = {}
        self.failures: dict[str, FoundFailure] = {}
        self.smallest_sizes: dict[str, Any] = {}
        self.first_failure_key = ""
        self.failure_is_known = False
        self.problem = ""
        self.exhausted = False
        self.note = ExampleNote(os.getpid(), self.started, 0, False, "", [])
        self._note_file = folder / f"{time_slice.serial}.note"
        self._note_file.touch()

    # Running

    def run_slice(self, recorder: run_item.PhaseRecorder, corpus: Path) -> SideResult:
        test, blob = self.item.obj, self.time_slice.replay_blob

        def change(usual: settings) -> settings:
            return self._make_settings(usual, corpus)

        hypothesis_adapter.prepare_search(test, change, self.time_slice.seed, key=self.item.nodeid)
        with (
            hypothesis_adapter.wrap_inner_test(test, self._wrap_test),
            hypothesis_adapter.pin_example(test, blob) if blob else contextlib.nullcontext(),
            use_fuzz_engine(self.time_slice) as engine,
        ):
            side = device_tests.run_protocol(self.item, recorder)
        self.exhausted = engine.instance is not None and engine.instance.exhausted
        self._write_result(side)
        return side

    def _make_settings(self, usual: settings, corpus: Path) -> settings:
        return settings(
            usual,
            max_examples=self.time_slice.max_examples,
            deadline=None,  # the run ends slow examples itself
            database=ExampleCorpus(corpus, lambda: self.failure_is_known),
            print_blob=True,
            report_multiple_bugs=False,
            phases=(Phase.reuse, Phase.generate, Phase.target, Phase.shrink),
            suppress_health_check=tuple(HealthCheck),
        )

    # Each example

    def _wrap_test(self, test: Callable[..., Any]) -> Callable[..., Any]:
        def run_example(*arguments: Any, **named: Any) -> Any:
            self.examples += 1
            self.failure_is_known = False
            self._write_example_note(named)
            self._wrap_draws(named)
            search_targets.begin_example()
            try:
                with self._trace_example():
                    test(*arguments, **named)
            except CONTROL_FLOW_EXCEPTIONS:
                raise
            except BaseException as error:
                self._handle_failure(error, named)
            finally:
                self._record_targets(search_targets.end_example())

        return run_example

    def _trace_example(self) -> contextlib.AbstractContextManager[None]:
        """Trace the first examples of a test, in whichever slice, and some later ones."""
        number = self.time_slice.examples_before + self.examples
        is_traced = number <= FULLY_TRACED_EXAMPLES or number % TRACED_FRACTION == 0
        return self.tracer.trace() if is_traced and self.files else contextlib.nullcontext()

    def _record_targets(self, targets: dict[str, float]) -> None:
        for label, value in targets.items():
            self.targets[label] = max(value, self.targets.get(label, value))
            if not self.time_slice.replay_blob:
                hypothesis.target(value, label=label)

    def _handle_failure(self, error: BaseException, arguments: dict[str, Any]) -> None:
        """Count a known failure as a pass, so that the search goes on to others."""
        failure = failure_identity.failure_from_error(error, self.item.path)
        key = failure.key
        is_device_lost = bool(device_tests.read_pending_error())
        if key in self.time_slice.known_failures and not is_device_lost:
            self.known_failures[key] += 1
            self.failure_is_known = True
            return
        size = hypothesis_adapter.measure_current_example()
        known = self.failures.get(key)
        if known is None or size < self.smallest_sizes[key]:
            failure.arguments = describe_arguments(arguments)
            failure.blob = hypothesis_adapter.encode_current_example()
            failure.examples = known.examples if known else self.examples
            self.failures[key], self.smallest_sizes[key] = failure, size
            self._write_file("found", list(self.failures.values()))
        if is_device_lost:
            # A lost device fails each example: they would shrink it to one that fails alone.
            self.time_slice.shrink_until = 0.0
        self.first_failure_key = self.first_failure_key or key
        if key != self.first_failure_key:
            # The shrinking of one failure found another, which gets its own slice.
            self.failure_is_known = True
            return
        raise error

    def _wrap_draws(self, arguments: dict[str, Any]) -> None:
        """Write the note again after each draw of a test that draws while it runs."""
        for data in arguments.values():
            if isinstance(data, DataObject):
                data.draw = self._wrap_draw(data.draw, arguments)  # type: ignore[method-assign]

    def _wrap_draw(self, draw: Callable[..., Any], arguments: dict[str, Any]) -> Callable[..., Any]:
        def draw_and_note(*positional: Any, **options: Any) -> Any:
            value = draw(*positional, **options)
            self._write_example_note(arguments)
            return value

        return draw_and_note

    def _write_example_note(self, arguments: dict[str, Any]) -> None:
        self.note = ExampleNote(
            pid=os.getpid(),
            started=time.monotonic(),
            examples=self.examples,
            is_running=True,
            blob=hypothesis_adapter.encode_current_example(),
            arguments=describe_arguments(arguments),
        )
        self._write_note()

    # Files

    def _write_result(self, side: SideResult) -> None:
        self.note.is_running = False
        self._write_note()
        failing = (
            Outcome.FAILED,
            Outcome.ERROR,
            Outcome.REFUSED,
            Outcome.FLAKY,
            Outcome.CUDA_ERROR,
        )
        if self.first_failure_key and side.outcome in failing:
            self.failures[self.first_failure_key].shrunk = (
                time.monotonic() < self.time_slice.shrink_until
            )
        if NotReadyError.__name__ in side.headline:
            self.problem = side.headline
        self._write_file(
            "sliced",
            TimeSliceResult(
                examples=self.examples,
                seconds=time.monotonic() - self.started,
                known_failure_counts=dict(self.known_failures),
                targets=self.targets,
                covered_lines={str(file): sorted(n) for file, n in self.tracer.lines.items()},
                failures=list(self.failures.values()),
                exhausted=self.exhausted,
                stand_ins=side.stand_ins,
                compile_seconds=side.compile_seconds,
                problem=self.problem,
            ),
        )

    def _write_note(self) -> None:
        """Overwrite the note in place, since replacing a file takes longer than many examples."""
        text = msgspec.json.encode(self.note)
        with open(self._note_file, "r+b", buffering=0) as notes:
            notes.write(b"%08x%s\n" % (zlib.crc32(text), text))

    def _write_file(self, kind: str, value: object) -> None:
        write_atomically(
            self.folder / f"{self.time_slice.serial}.{kind}", msgspec.json.encode(value)
        )
