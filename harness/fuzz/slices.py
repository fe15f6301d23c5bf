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

from harness.errors import NotReady
from harness.fuzz import targets, telling_apart
from harness.fuzz.corpus import Corpus
from harness.fuzz.decoding import words
from harness.fuzz.engine import searching
from harness.fuzz.tracing import Tracer
from harness.fuzz.values import Found, Note, Slice, Sliced
from harness.prove import body
from harness.store.prove.values import Outcome, Side

# How Hypothesis and pytest speak to each other through a test: no failures.
PASSES_THROUGH = (StopTest, UnsatisfiedAssumption, KeyboardInterrupt, pytest.skip.Exception)


def function_of(item: Any) -> Any:
    return getattr(item.obj, "__func__", item.obj)


class Watched:
    """One slice of one test, and what it comes to."""

    def __init__(self, item: Any, asked: Slice, folder: Path, files: list[str]) -> None:
        self.item = item
        self.asked = asked
        self.folder = folder
        self.tracer = Tracer(files, asked.before)
        self.begun = time.monotonic()
        self.examples = 0
        self.known: Counter[str] = Counter()
        self.targets: dict[str, float] = {}
        self.found: dict[str, Found] = {}
        self.smallest: dict[str, Any] = {}
        self.first = ""
        self.was_known = False
        self.problem = ""
        self.exhausted = False
        self.note = Note(os.getpid(), self.begun, 0, False, "", [])
        self._notes = folder / f"{asked.serial}.note"
        self._notes.touch()

    # Running

    def run(self, listener: body.Listener, corpus: Path) -> Side:
        function = function_of(self.item)
        handle = self.item.obj.hypothesis
        handle.inner_test = self._watching(handle.inner_test)
        function._hypothesis_internal_use_settings = self._settings(function, corpus)
        # A forced seed would take the database away.
        hypothesis.core.global_force_seed = None
        function._hypothesis_internal_use_seed = self.asked.seed
        function._hypothesis_internal_database_key = self.item.nodeid.encode()
        if self.asked.only:
            function._hypothesis_internal_use_reproduce_failure = (
                hypothesis.__version__,
                self.asked.only.encode(),
            )
        with searching(self.asked) as search:
            side = body.run(self.item, listener)
        self.exhausted = search.made is not None and search.made.exhausted
        self._finish(side)
        return side

    def _settings(self, function: Any, corpus: Path) -> settings:
        usual = getattr(function, "_hypothesis_internal_use_settings", None) or settings()
        phases = (Phase.reuse, Phase.generate, Phase.target, Phase.shrink)
        return settings(
            usual,
            max_examples=self.asked.most,
            deadline=None,  # the run looks after those that take too long
            database=Corpus(corpus, lambda: self.was_known),
            print_blob=True,
            report_multiple_bugs=False,
            phases=phases,
            suppress_health_check=tuple(HealthCheck),
        )

    # Watching

    def _watching(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def watched(*arguments: Any, **named: Any) -> Any:
            self.examples += 1
            self.was_known = False
            self._note(named)
            self._note_draws(named)
            targets.begin()
            try:
                with self.tracer.example():
                    inner(*arguments, **named)
            except PASSES_THROUGH:
                raise
            except BaseException as error:
                self._failed(error, named)
            finally:
                self._aim(targets.end())

        return watched

    def _aim(self, reached: dict[str, float]) -> None:
        for label, value in reached.items():
            self.targets[label] = max(value, self.targets.get(label, value))
            if not self.asked.only:
                hypothesis.target(value, label=label)

    def _failed(self, error: BaseException, named: dict[str, Any]) -> None:
        """A failure that is known counts as passed: the search goes on behind it."""
        found = telling_apart.told(error, self.item.path)
        key = found.key
        if key in self.asked.known:
            self.known[key] += 1
            self.was_known = True
            return
        data = current_build_context().data
        size = sort_key(data.nodes)
        known = self.found.get(key)
        if known is None or size < self.smallest[key]:
            found.arguments = words(named)
            found.blob = encode_failure(data.choices).decode()
            found.examples = known.examples if known else self.examples
            self.found[key], self.smallest[key] = found, size
            self._write("found", list(self.found.values()))
        self.first = self.first or key
        if key != self.first:
            # Shrinking one failure came upon another, which gets its own slice.
            self.was_known = True
            return
        raise error

    def _note_draws(self, named: dict[str, Any]) -> None:
        """What a test draws as it goes belongs to its example, too."""
        for data in named.values():
            if isinstance(data, DataObject):
                data.draw = self._noting(data.draw, named)  # type: ignore[method-assign]

    def _noting(self, draw: Callable[..., Any], named: dict[str, Any]) -> Callable[..., Any]:
        def drawn(*arguments: Any, **options: Any) -> Any:
            value = draw(*arguments, **options)
            self._note(named)
            return value

        return drawn

    def _note(self, named: dict[str, Any]) -> None:
        self.note = Note(
            pid=os.getpid(),
            begun=time.monotonic(),
            examples=self.examples,
            running=True,
            blob=encode_failure(current_build_context().data.choices).decode(),
            arguments=words(named),
        )
        self._tell()

    # Telling

    def _finish(self, side: Side) -> None:
        self.note.running = False
        self._tell()
        shown = (Outcome.FAILED, Outcome.ERROR, Outcome.FLAKY, Outcome.CUDA_ERROR)
        if self.first and side.outcome in shown:
            self.found[self.first].shrunk = time.monotonic() < self.asked.shrink_until
        if NotReady.__name__ in side.headline:
            self.problem = side.headline
        self._write(
            "sliced",
            Sliced(
                examples=self.examples,
                seconds=time.monotonic() - self.begun,
                known=dict(self.known),
                targets=self.targets,
                covered={file: sorted(lines) for file, lines in self.tracer.covered.items()},
                found=list(self.found.values()),
                exhausted=self.exhausted,
                problem=self.problem,
            ),
        )

    def _tell(self) -> None:
        """In place, a line: a file put in the place of another takes longer than many examples."""
        text = msgspec.json.encode(self.note)
        with open(self._notes, "r+b", buffering=0) as notes:
            notes.write(b"%08x%s\n" % (zlib.crc32(text), text))

    def _write(self, kind: str, value: object) -> None:
        """Whole or not at all: somebody may read it at any time."""
        file = self.folder / f"{self.asked.serial}.{kind}"
        aside = file.with_name(f"{file.name}.part")
        aside.write_bytes(msgspec.json.encode(value))
        os.replace(aside, file)
