"""Patching at import: a finder that hands out a module's patched source in place of its own."""

from __future__ import annotations

import hashlib
import linecache
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

from harness.patching.attestation import Recorder
from harness.patching.instrument import RAN, Instrumented, compile_instrumented

PACKAGE = "sglang"


class SourceChanged(Exception):
    """A module's source is not what the plan was made from."""


@dataclass(frozen=True)
class Patched:
    """One module of a plan, as a patched process reads it."""

    module: str
    digest: str
    text: str
    sites: list[dict[str, Any]]

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Patched:
        return cls(data["module"], data["digest"], data["text"], data["sites"])


class PatchedLoader(SourceFileLoader):
    """Loads one module from its patched text; never reads or writes its cached bytecode."""

    def __init__(
        self,
        name: str,
        path: str,
        patched: Patched,
        recorder: Recorder,
        stop: Callable[[str], None],
    ) -> None:
        super().__init__(name, path)
        self.patched = patched
        self._recorder = recorder
        self._stop = stop
        self._compiled: Instrumented | None = None

    def get_source(self, fullname: str) -> str:
        return self.patched.text

    def get_code(self, fullname: str) -> CodeType:
        if self._compiled is None:
            self._compiled = self._compile()
        return self._compiled.code

    def _compile(self) -> Instrumented:
        original = self.get_data(self.path).decode("utf-8").replace("\r\n", "\n")
        if hashlib.sha256(original.encode()).hexdigest() != self.patched.digest:
            self._stop(f"{self.path} changed while toggles were being applied to it; start again")
            raise SourceChanged(self.path)
        slots = [
            (self._recorder.slot(s["toggle"], s["direction"], s["target"]), s)
            for s in self.patched.sites
        ]
        compiled = compile_instrumented(
            self.patched.text, self.path, [(slot, s["line"], s["column"]) for slot, s in slots]
        )
        self._recorder.counted_as(compiled.kinds)
        # No modification time: linecache then keeps these lines instead of the file's own.
        lines = self.patched.text.splitlines(keepends=True)
        linecache.cache[self.path] = (len(self.patched.text), None, lines, self.path)
        return compiled

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__[RAN] = self._recorder.ran
        super().exec_module(module)
        if self._compiled is not None and self._compiled.kernels:
            from harness.patching import kernels

            kernels.count_launches(module, self._compiled.kernels, self._recorder.ran)
        self._recorder.patched(self.name)


class PatchingFinder:
    """Stands first on sys.meta_path; makes the plan when the package is first looked for."""

    def __init__(
        self, plan: Callable[[str], tuple[list[Patched], Recorder]], stop: Callable[[str], None]
    ) -> None:
        self._plan = plan
        self._stop = stop
        self._modules: dict[str, Patched] | None = None
        self._recorder: Recorder | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != PACKAGE and not fullname.startswith(PACKAGE + "."):
            return None
        if fullname == PACKAGE and self._modules is None:
            spec = self._next_spec(fullname, path, target)
            if spec is None or not spec.submodule_search_locations:
                return None
            self._modules = {}
            modules, self._recorder = self._plan(next(iter(spec.submodule_search_locations)))
            self._modules = {patched.module: patched for patched in modules}
        patched = (self._modules or {}).get(fullname)
        if patched is None or self._recorder is None:
            return None
        spec = self._next_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            return None
        loader = PatchedLoader(fullname, spec.origin, patched, self._recorder, self._stop)
        spec.loader = loader
        return spec

    def _next_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    return spec
        return None
