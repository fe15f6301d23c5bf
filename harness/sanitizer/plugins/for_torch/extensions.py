"""CUDA extensions that torch builds while a program runs, on the virtual GPU.

torch's own code writes the build file and calls nvcc and the C++ compiler; it is told that there is
a toolkit, a card that takes PTX with source lines, and no libtorch_cuda. The built module's
functions, and the operators that it registers with torch (`TORCH_LIBRARY`), are host calls, whose
launches run on this CPU (`cuda.host_calls`). Host code is compiled without optimization, since it
only launches.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from harness.core.preparation import announce_preparation
from harness.sanitizer.cuda import cudart
from harness.sanitizer.cuda.host_calls import CALLS
from harness.sanitizer.cuda.host_signatures import ExportingModule
from harness.sanitizer.device import graphs
from harness.sanitizer.device.cards import get_card
from harness.sanitizer.hooks import HOOKS

_FOLDER = Path(__file__).parent
_MISSING_LIBRARIES = frozenset(("-lc10_cuda", "-ltorch_cuda"))
_OPTIONS = {
    "extra_cflags": ["-O0"],
    "extra_cuda_cflags": ["-lineinfo", "--no-compress"],
    "extra_include_paths": [str(_FOLDER / "include")],
}


class ExtensionModule(ExportingModule):
    """A loaded extension; each of its functions is one host call."""

    def _wrap_export(self, name: str, names: tuple[str, ...], function: Any) -> Any:
        full = f"{self._name}.{name}"
        run = functools.partial(CALLS.run, full, names, set())

        def call(*args: Any) -> Any:
            return graphs.run_captured(full, lambda *given: run(function, given), *args)

        return call


def hook_builds(cpp_extension: Any) -> None:
    """Have `load` and `load_inline` build for the virtual card, and wrap what they load."""
    compile_module = cpp_extension._jit_compile
    signature = inspect.signature(compile_module)

    def build(*args: Any, **options: Any) -> Any:
        call = signature.bind(*args, **options)
        call.apply_defaults()
        given = call.arguments
        has_cuda, sources = given["with_cuda"], given["sources"]
        if has_cuda is None:
            has_cuda = any(map(cpp_extension._is_cuda_file, sources))
        if not has_cuda:
            return compile_module(*args, **options)
        _prepare_process(cpp_extension)
        given["sources"] = [*sources, str(_FOLDER / "c10_cuda.cpp")]
        for name, more in _OPTIONS.items():
            given[name] = [*more, *(given[name] or ())]
        begun, operators = time.monotonic(), _list_operators()
        with announce_preparation():
            module = compile_module(*call.args, **call.kwargs)
        if (seconds := time.monotonic() - begun) >= 1:
            words = f"the extension {given['name']} was built in {seconds:.0f} s"
            print(f"unfix: {words}, into {given['build_directory']}", file=sys.stderr)
        if registered := _list_operators() - operators:
            _check_calls(registered)
        if not given["is_python_module"]:
            return module
        return ExtensionModule(module, given["name"], {}, sources)

    cpp_extension._jit_compile = build


def _list_operators() -> set[str]:
    """List torch's operators, without their overloads: `aten::add`."""
    return {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}


_checked_operators: set[str] = set()


def _check_calls(names: set[str]) -> None:
    """Make each call of these operators through `torch.ops` a host call."""
    if not _checked_operators:
        for kind in (torch._ops.OpOverloadPacket, torch._ops.OpOverload):
            kind.__call__ = _wrap_call(kind.__call__)
    _checked_operators.update(names)


def _wrap_call(call: Any) -> Any:
    def call_operator(operator: Any, /, *args: Any, **options: Any) -> Any:
        is_packet = isinstance(operator, torch._ops.OpOverloadPacket)
        packet = operator if is_packet else operator._overloadpacket
        full = packet._qualified_op_name
        if full not in _checked_operators:
            return call(operator, *args, **options)
        overload = getattr(packet, packet.overloads()[0]) if is_packet else operator
        names = [one.name for one in overload._schema.arguments][: len(args)]

        def function(*given: Any) -> Any:
            place = len(args)
            return call(operator, *given[:place], **dict(zip(options, given[place:], strict=True)))

        run_call = functools.partial(CALLS.run, full, (*names, *options), set())
        values = (*args, *options.values())
        return graphs.run_captured(full, lambda *given: run_call(function, given), *values)

    return call_operator


@functools.cache
def _prepare_process(cpp_extension: Any) -> None:
    """Make the toolkit and the stand-in for libcudart known; once in a process."""
    toolkit = HOOKS.find_toolkit()
    toolkit.set_variables(os.environ)
    cudart.install_cudart(get_card(), CALLS)
    HOOKS.sees_cuda_launches = True
    list_flags = cpp_extension._prepare_ldflags

    def list_present(*args: Any) -> list[str]:
        return [flag for flag in list_flags(*args) if flag not in _MISSING_LIBRARIES]

    def target_flags(cflags: Any = None) -> list[str]:
        target = f"compute_{get_card().architecture.removeprefix('sm_')}"
        return [f"-gencode=arch={target},code={target}"]

    cpp_extension.CUDA_HOME = str(toolkit.home)
    cpp_extension._prepare_ldflags = list_present
    cpp_extension._get_cuda_arch_flags = target_flags
