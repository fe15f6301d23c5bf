"""A module that SGLang's `load_jit` built for the virtual GPU; its launches run on this CPU."""

from __future__ import annotations

from typing import Any

from harness.sanitizer.cuda.host_calls import CALLS
from harness.sanitizer.cuda.host_signatures import ExportingModule
from harness.sanitizer.device import graphs
from harness.sanitizer.hooks import HOOKS
from harness.sanitizer.plugins.for_sglang.recorded_builds import RecordedBuild, record_launches


class CudaModule(ExportingModule):
    """A loaded module; each export is one host call."""

    def __init__(
        self,
        module: Any,
        name: str,
        exports: dict[str, str],
        files: tuple[str, ...],
        build: RecordedBuild | None = None,
    ) -> None:
        super().__init__(module, name, exports, files)
        self._build = build  # if builds are recorded
        self._launched: set[str] = set()

    def _call(self, name: str, names: tuple[str, ...], function: Any, args: Any) -> Any:
        known = len(self._launched)
        try:
            return CALLS.run(name, names, self._launched, function, args)
        finally:
            if self._build is not None and len(self._launched) > known:
                record_launches(self._build, self._launched)

    def _build_variant(self) -> None:
        """Build what the module would run now."""
        HOOKS.build_cuda_module(self._module)
        for name in self._exports:
            getattr(self, name)  # which reads its signature

    def _wrap_export(self, name: str, names: tuple[str, ...], function: Any) -> Any:
        full = f"jit:{self._name}.{name}"

        def call(*args: Any) -> Any:
            return graphs.run_captured(full, self._call, full, names, function, args)

        return call


def prepare_module(module: CudaModule) -> None:
    """Build what a module would run now, before anything is timed."""
    module._build_variant()
