"""From LLVM's assembly to functions that can be called, with the objects kept on disk.

The one module that knows llvmlite, which is imported when the first kernel is compiled or loaded.
Nothing here runs threads, and what is loaded is still there after a fork.
"""

from __future__ import annotations

import contextlib
import platform
from typing import Any

_LEVEL = 2


class Machine:
    """This computer's instructions, and the code loaded into this process."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        self._llvm = llvm
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._target = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(),
            features=llvm.get_host_cpu_features().flatten(),
            opt=_LEVEL,
            reloc="pic",
            jit=True,
        )
        self._loaded: list[Any] = []

    def compiled(self, text: str, level: int = _LEVEL) -> bytes:
        """The object code of a module."""
        llvm = self._llvm
        module = llvm.parse_assembly(text)
        module.triple = self._target.triple
        module.data_layout = str(self._target.target_data)
        options = llvm.create_pipeline_tuning_options(speed_level=level)
        options.loop_vectorization = options.slp_vectorization = level > 1
        options.loop_unrolling = False
        builder = llvm.create_pass_builder(self._target, options)
        builder.getModulePassManager().run(module, builder)
        return bytes(self._target.emit_object(module))

    def loaded(self, code: bytes, *names: str) -> list[int]:
        """The addresses of an object's functions; it stays for as long as the process."""
        llvm = self._llvm
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), self._target)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        self._loaded.append(engine)
        return [engine.get_function_address(name) for name in names]

    def known(self, name: str, address: int) -> None:
        self._llvm.add_symbol(name, address)


def host_words() -> list[str]:
    """What compiled code depends on beside its text."""
    return [platform.machine(), platform.processor(), _model()]


def _model() -> str:
    """The processor, as Linux names it: objects of one machine may lie on another's disk."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        lines = [line for line in file if line.startswith(("model name", "flags", "Features"))]
        return "".join(dict.fromkeys(lines))
    return ""
