"""From LLVM's assembly to functions that can be called.

The only module that uses llvmlite, which is imported when the first kernel is compiled or loaded.
It starts no threads, and loaded code is still there after a fork.
"""

from __future__ import annotations

import contextlib
import platform
from typing import Any


class LlvmJit:
    """This computer's instructions, and the code loaded into this process."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        self._llvm = llvm
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._engines: list[Any] = []

    def _make_target(self, level: int) -> Any:
        llvm = self._llvm
        return llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(),
            features=llvm.get_host_cpu_features().flatten(),
            opt=level,
            reloc="pic",
            jit=True,
        )

    def compile_object(self, text: str, thorough: bool) -> bytes:
        """Compile a module to object code: quickly, or thoroughly so that it runs quickly."""
        target = self._make_target(2 if thorough else 0)
        module = self._llvm.parse_assembly(text)
        module.triple = target.triple
        module.data_layout = str(target.target_data)
        (self._run_all_passes if thorough else self._run_few_passes)(module, target)
        return bytes(target.emit_object(module))

    def _run_all_passes(self, module: Any, target: Any) -> None:
        options = self._llvm.create_pipeline_tuning_options(speed_level=2)
        options.loop_unrolling = False
        builder = self._llvm.create_pass_builder(target, options)
        builder.getModulePassManager().run(module, builder)

    def _run_few_passes(self, module: Any, target: Any) -> None:
        """Turn stack slots into registers, and drop unused results."""
        options = self._llvm.create_pipeline_tuning_options(speed_level=1)
        builder = self._llvm.create_pass_builder(target, options)
        whole = self._llvm.create_new_module_pass_manager()
        whole.add_always_inliner_pass()
        whole.run(module, builder)
        passes = self._llvm.create_new_function_pass_manager()
        passes.add_sroa_pass()
        passes.add_simplify_cfg_pass()
        passes.add_instruction_combine_pass()
        for function in module.functions:
            if not function.is_declaration:
                passes.run(function, builder)

    def load_functions(self, code: bytes, *names: str) -> list[int]:
        """Load an object for the life of the process; return the addresses of its functions."""
        llvm = self._llvm
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), self._make_engine_target())
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        self._engines.append(engine)
        return [engine.get_function_address(name) for name in names]

    def _make_engine_target(self) -> Any:
        """Make a target for one engine, which owns it."""
        return self._llvm.Target.from_default_triple().create_target_machine(jit=True)

    def add_symbol(self, name: str, address: int) -> None:
        self._llvm.add_symbol(name, address)


def describe_host() -> list[str]:
    """Describe the parts of this machine that compiled code depends on."""
    return [platform.machine(), platform.processor(), _read_cpu_model()]


def _read_cpu_model() -> str:
    """Read the processor's name and features: different machines may share a disk."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        lines = [line for line in file if line.startswith(("model name", "flags", "Features"))]
        return "".join(dict.fromkeys(lines))
    return ""
