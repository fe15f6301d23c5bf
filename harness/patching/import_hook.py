"""Patching at import: a finder that loads a module from its patched source."""

from __future__ import annotations

import ast
import atexit
import io
import linecache
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import decode_source
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

from harness.core.after_import import find_spec_behind
from harness.core.code_digest import compute_digest
from harness.patching.attestation import AttestationRecorder
from harness.patching.instrumentation import InstrumentedModule, compile_instrumented

SGLANG_PACKAGE = "sglang"


@dataclass(frozen=True)
class PatchedModuleText:
    """One module of a plan, decoded from its JSON."""

    module: str
    digest: str
    text: str
    sites: list[SimpleNamespace]

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> PatchedModuleText:
        sites = [SimpleNamespace(**site) for site in data["sites"]]
        return cls(data["module"], data["digest"], data["text"], sites)


class PatchedLoader(SourceFileLoader):
    """Loads one module from its patched text; never reads or writes its cached bytecode."""

    def __init__(
        self,
        name: str,
        path: str,
        patched_text: PatchedModuleText,
        recorder: AttestationRecorder,
        exit_process: Callable[[str], None],
    ) -> None:
        super().__init__(name, path)
        self.patched_text = patched_text
        self._recorder = recorder
        self._exit_process = exit_process

    def get_source(self, fullname: str) -> str:
        return self.patched_text.text

    def get_code(self, fullname: str) -> CodeType:
        return self.compiled.code

    @cached_property
    def compiled(self) -> InstrumentedModule:
        original = decode_source(self.get_data(self.path))
        if compute_digest(original) != self.patched_text.digest:
            self._exit_process(
                f"{self.path} changed while toggles were being applied to it; start again"
            )
        assign_slot = self._recorder.assign_slot
        sites = [
            (assign_slot(site.toggle, site.direction, site.target), site.line, site.column)
            for site in self.patched_text.sites
        ]
        compiled = compile_instrumented(
            ast.parse(self.patched_text.text), self.path, sites, self._recorder.count_run
        )
        self._recorder.record_count_kinds(compiled.kinds)
        cache_source_lines(self.path, self.patched_text.text)
        return compiled

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        if self.compiled.kernels:
            from harness.sanitizer.triton import jit_kernels

            jit_kernels.count_launches(module, self.compiled.kernels, self._recorder.count_run)
        self._recorder.record_module(self.name)


def cache_source_lines(filename: str, text: str) -> None:
    """Make tracebacks, `inspect` and Triton read these lines under a file name."""
    # Without a modification time linecache never replaces these lines by the file's own.
    linecache.cache[filename] = (len(text), None, io.StringIO(text).readlines(), filename)


class PatchingFinder:
    """The first entry of sys.meta_path; loads the plan at the first import of the package.

    A failed plan is not cached: the next import of the package fails the same way, also in a
    program that catches the first error.
    """

    def __init__(
        self,
        load_plan: Callable[[str], tuple[list[PatchedModuleText], AttestationRecorder]],
        exit_process: Callable[[str], None],
    ) -> None:
        self._load_plan = load_plan
        self._exit_process = exit_process
        self._modules: dict[str, PatchedModuleText] | None = None
        self._recorder: AttestationRecorder | None = None
        atexit.register(self._check_at_exit)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != SGLANG_PACKAGE and not fullname.startswith(SGLANG_PACKAGE + "."):
            return None
        if self._modules is None:
            spec = find_spec_behind(self, SGLANG_PACKAGE)
            if spec is None or not spec.submodule_search_locations:
                return None
            modules, self._recorder = self._load_plan(next(iter(spec.submodule_search_locations)))
            self._modules = {patched.module: patched for patched in modules}
        self.check_loaders()
        patched = self._modules.get(fullname)
        if patched is None or self._recorder is None:
            return None
        spec = find_spec_behind(self, fullname, path, target)
        if spec is None or spec.origin is None:
            return None
        spec.loader = PatchedLoader(
            fullname, spec.origin, patched, self._recorder, self._exit_process
        )
        return spec

    def _check_at_exit(self) -> None:
        try:
            self.check_loaders()
        except SystemExit:
            sys.stdout.flush()
            os._exit(3)  # an exit hook cannot set the exit code otherwise

    def check_loaders(self) -> None:
        """End the process if another import hook has loaded a module of the plan."""
        for name in self._modules or ():
            module = sys.modules.get(name)
            loader = getattr(getattr(module, "__spec__", None), "loader", None)
            if module is not None and not isinstance(loader, PatchedLoader):
                self._exit_process(
                    f"{name} was loaded without its toggles by {type(loader).__name__}, an import "
                    "hook in front of unfix's"
                )
