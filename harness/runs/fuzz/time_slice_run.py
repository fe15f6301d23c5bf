"""A slice inside its own process: one test, for some seconds, each example watched.

What it does is written down before it is done, so that an example that ends the process is known.
"""

from __future__ import annotations

import functools
import os
import time
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.core
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.control import current_build_context
from hypothesis.core import encode_failure
from hypothesis.errors import StopTest, UnsatisfiedAssumption
from hypothesis.internal.conjecture.shrinker import sort_key
from hypothesis.strategies import DataObject

from harness.core.errors import NotReadyError
from harness.runs.fuzz import failure_identity, search_targets
from harness.runs.fuzz.example_corpus import ExampleCorpus
from harness.runs.fuzz.example_decoding import describe_arguments
from harness.runs.fuzz.line_tracing import ExampleTracer
from harness.runs.fuzz.messages import ExampleNote, FoundFailure, TimeSlice, TimeSliceResult
from harness.runs.fuzz.search_engine import use_fuzz_engine
from harness.store.prove.values import SideOutcome, SideResult
from harness.workers import run_item

# How Hypothesis and pytest speak to each other through a test: no failures.
CONTROL_FLOW_EXCEPTIONS = (
    StopTest,
    UnsatisfiedAssumption,
    KeyboardInterrupt,
    pytest.skip.Exception,
)


def get_test_function(item: Any) -> Any:
    return getattr(item.obj, "__func__", item.obj)


class TimeSliceRun:
    """One slice of one test, and what it comes to."""

    def __init__(self, item: Any, time_slice: TimeSlice, folder: Path, files: list[str]) -> None:
        self.item = item
        self.time_slice = time_slice
        self.folder = folder
        self.tracer = ExampleTracer(files, time_slice.examples_before)
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

    def run(self, listener: run_item.PhaseRecorder, corpus: Path) -> SideResult:
        function = get_test_function(self.item)
        handle = self.item.obj.hypothesis
        handle.inner_test = self._wrap_test(handle.inner_test)
        function._hypothesis_internal_use_settings = self._make_settings(function, corpus)
        # A forced seed would take the database away.
        hypothesis.core.global_force_seed = None
        function._hypothesis_internal_use_seed = self.time_slice.seed
        function._hypothesis_internal_database_key = self.item.nodeid.encode()
        if self.time_slice.replay_blob:
            function._hypothesis_internal_use_reproduce_failure = (
                hypothesis.__version__,
                self.time_slice.replay_blob.encode(),
            )
        with use_fuzz_engine(self.time_slice) as search:
            side = run_item.run_protocol(self.item, listener)
        self.exhausted = search.instance is not None and search.instance.exhausted
        self._write_result(side)
        return side

    def _make_settings(self, function: Any, corpus: Path) -> settings:
        usual = getattr(function, "_hypothesis_internal_use_settings", None) or settings()
        phases = (Phase.reuse, Phase.generate, Phase.target, Phase.shrink)
        return settings(
            usual,
            max_examples=self.time_slice.max_examples,
            deadline=None,  # the run looks after those that take too long
            database=ExampleCorpus(corpus, lambda: self.failure_is_known),
            print_blob=True,
            report_multiple_bugs=False,
            phases=phases,
            suppress_health_check=tuple(HealthCheck),
        )

    # Watching

    def _wrap_test(self, test: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(test)
        def watched(*arguments: Any, **named: Any) -> Any:
            self.examples += 1
            self.failure_is_known = False
            self._write_example_note(named)
            self._wrap_draws(named)
            search_targets.begin_example()
            try:
                with self.tracer.trace_example():
                    test(*arguments, **named)
            except CONTROL_FLOW_EXCEPTIONS:
                raise
            except BaseException as error:
                self._handle_failure(error, named)
            finally:
                self._record_targets(search_targets.end_example())

        return watched

    def _record_targets(self, targets: dict[str, float]) -> None:
        for label, value in targets.items():
            self.targets[label] = max(value, self.targets.get(label, value))
            if not self.time_slice.replay_blob:
                hypothesis.target(value, label=label)

    def _handle_failure(self, error: BaseException, arguments: dict[str, Any]) -> None:
        """A failure that is known counts as passed: the search goes on behind it."""
        found = failure_identity.failure_from_error(error, self.item.path)
        key = found.key
        if key in self.time_slice.known_failures:
            self.known_failures[key] += 1
            self.failure_is_known = True
            return
        data = current_build_context().data
        size = sort_key(data.nodes)
        known = self.failures.get(key)
        if known is None or size < self.smallest_sizes[key]:
            found.arguments = describe_arguments(arguments)
            found.blob = encode_failure(data.choices).decode()
            found.examples = known.examples if known else self.examples
            self.failures[key], self.smallest_sizes[key] = found, size
            self._write_atomically("found", list(self.failures.values()))
        self.first_failure_key = self.first_failure_key or key
        if key != self.first_failure_key:
            # Shrinking one failure came upon another, which gets its own slice.
            self.failure_is_known = True
            return
        raise error

    def _wrap_draws(self, arguments: dict[str, Any]) -> None:
        """What a test draws as it goes belongs to its example, too."""
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
            blob=encode_failure(current_build_context().data.choices).decode(),
            arguments=describe_arguments(arguments),
        )
        self._write_note()

    # Telling

    def _write_result(self, side: SideResult) -> None:
        self.note.is_running = False
        self._write_note()
        shown = (SideOutcome.FAILED, SideOutcome.ERROR, SideOutcome.FLAKY, SideOutcome.CUDA_ERROR)
        if self.first_failure_key and side.outcome in shown:
            self.failures[self.first_failure_key].shrunk = (
                time.monotonic() < self.time_slice.shrink_until
            )
        if NotReadyError.__name__ in side.headline:
            self.problem = side.headline
        self._write_atomically(
            "sliced",
            TimeSliceResult(
                examples=self.examples,
                seconds=time.monotonic() - self.started,
                known_failure_counts=dict(self.known_failures),
                targets=self.targets,
                covered_lines={file: sorted(lines) for file, lines in self.tracer.covered.items()},
                failures=list(self.failures.values()),
                exhausted=self.exhausted,
                problem=self.problem,
            ),
        )

    def _write_note(self) -> None:
        """In place, a line: a file put in the place of another takes longer than many examples."""
        text = msgspec.json.encode(self.note)
        with open(self._note_file, "r+b", buffering=0) as notes:
            notes.write(b"%08x%s\n" % (zlib.crc32(text), text))

    def _write_atomically(self, kind: str, value: object) -> None:
        """Whole or not at all: somebody may read it at any time."""
        file = self.folder / f"{self.time_slice.serial}.{kind}"
        aside = file.with_name(f"{file.name}.part")
        aside.write_bytes(msgspec.json.encode(value))
        os.replace(aside, file)
