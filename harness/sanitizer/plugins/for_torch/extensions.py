"""CUDA extensions that torch builds, while a program runs or for `setup.py`, on the virtual GPU.

torch's own code writes the build file and calls nvcc and the C++ compiler; it is told that there is
a toolkit, a card that takes PTX with source lines, and no libtorch_cuda. The built module's
functions, and the operators that it registers with torch (`TORCH_LIBRARY`), are host calls, whose
launches run on this CPU (`cuda.host_calls`). Host code is compiled without optimization, since it
only launches.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import time
from collections.abc import Iterator
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
from harness.sanitizer.plugins.for_torch import open_sessions

_FOLDER = Path(__file__).parent
BUILD_MARK = "unfix: built for the virtual GPU: "  # in the extension, before its sources' paths
_MISSING_LIBRARIES = frozenset(("-lc10_cuda", "-ltorch_cuda"))
_C_FLAGS, _CUDA_FLAGS = ["-O0"], ["-lineinfo", "--no-compress"]
_OPTIONS = {
    "extra_cflags": _C_FLAGS,
    "extra_cuda_cflags": _CUDA_FLAGS,
    "extra_include_paths": [str(_FOLDER / "include")],
}


class ExtensionModule(ExportingModule):
    """A loaded extension; each of its functions is one host call."""

    def _wrap_export(self, name: str, names: tuple[str, ...], function: Any) -> Any:
        return make_host_call(f"{self._name}.{name}", names, function)


def make_host_call(full: str, names: tuple[str, ...], function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        return _run_host_call(full, names, function, args, options)

    return call


def _run_host_call(
    full: str, names: tuple[str, ...], function: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """Call a function whose positional arguments have these names."""
    place = len(args)
    missing = (f"argument {at}" for at in range(len(names), place))
    named = (*names[:place], *missing, *options)

    def call_function(*given: Any) -> Any:
        return function(*given[:place], **dict(zip(options, given[place:], strict=True)))

    run_call = functools.partial(CALLS.run, full, named, set())
    return graphs.run_captured(
        full, lambda *given: run_call(call_function, given), *args, *options.values()
    )


def hook_builds(cpp_extension: Any) -> None:
    """Have extensions built for the virtual card, and wrap what `load` and `load_inline` load."""
    _hook_setup(cpp_extension)
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
        with check_new_operators(), _report_build(given["name"], given["build_directory"]):
            module = compile_module(*call.args, **call.kwargs)
        if not given["is_python_module"]:
            return module
        return ExtensionModule(module, given["name"], {}, sources)

    cpp_extension._jit_compile = build


def _hook_setup(cpp_extension: Any) -> None:
    """Have what a `setup.py` of this process builds run on the virtual card."""
    declare, builder = cpp_extension.CUDAExtension, cpp_extension.BuildExtension
    build_extensions = builder.build_extensions

    @functools.wraps(declare)
    def declare_extension(*args: Any, **options: Any) -> Any:
        _prepare_process(cpp_extension)  # it asks for CUDA_HOME
        return declare(*args, **options)

    @functools.wraps(build_extensions)
    def build(command: Any) -> None:
        with contextlib.ExitStack() as stack:
            for extension in command.extensions:
                if any(map(cpp_extension._is_cuda_file, extension.sources)):
                    _prepare_process(cpp_extension)
                    _add_runtime(extension, Path(command.build_temp))
                    stack.enter_context(_report_build(extension.name, command.build_lib))
            build_extensions(command)

    cpp_extension.CUDAExtension, builder.build_extensions = declare_extension, build


def _add_runtime(extension: Any, folder: Path) -> None:
    """Link what stands for libtorch_cuda, with the paths of the sources, and compile for checks."""
    sources = "\\n".join(os.path.abspath(file) for file in extension.sources)
    mark = f'__attribute__((used)) static const char mark[] = "{BUILD_MARK}{sources}";\n'
    folder.mkdir(parents=True, exist_ok=True)
    runtime = folder / f"{extension.name}_c10_cuda.cpp"
    runtime.write_text((_FOLDER / "c10_cuda.cpp").read_text() + mark)
    extension.sources = [*extension.sources, str(runtime)]
    extension.include_dirs = [str(_FOLDER / "include"), *extension.include_dirs]
    extension.libraries = [
        name for name in extension.libraries if f"-l{name}" not in _MISSING_LIBRARIES
    ]
    given = extension.extra_compile_args
    flags = given if isinstance(given, dict) else {"cxx": given, "nvcc": given}
    extension.extra_compile_args = {
        **flags,
        "cxx": [*(flags.get("cxx") or ()), *_C_FLAGS],
        "nvcc": [*(flags.get("nvcc") or ()), *_CUDA_FLAGS],
    }


@contextlib.contextmanager
def _report_build(name: str, folder: str) -> Iterator[None]:
    begun = time.monotonic()
    with announce_preparation():
        yield
    if (seconds := time.monotonic() - begun) >= 1:
        words = f"the extension {name} was built in {seconds:.0f} s, into {folder}"
        print(f"unfix: {words}", file=sys.stderr)


@contextlib.contextmanager
def check_new_operators() -> Iterator[None]:
    """Make calls of the operators that are registered meanwhile host calls."""
    before = _list_operators()
    yield
    if registered := _list_operators() - before:
        _check_calls(registered)


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
        names = tuple(one.name for one in overload._schema.arguments)
        return _run_host_call(full, names, functools.partial(call, operator), args, options)

    return call_operator


@functools.cache
def prepare_launches() -> Any:
    """Make the stand-in for libcudart known, and return the toolkit; once in a process."""
    toolkit = HOOKS.find_toolkit()
    toolkit.set_variables(os.environ)
    cudart.install_cudart(get_card(), CALLS)
    HOOKS.sees_cuda_launches = True
    open_sessions.check_open_sessions()
    return toolkit


@functools.cache
def _prepare_process(cpp_extension: Any) -> None:
    """Make the toolkit known to torch's builds; once in a process."""
    toolkit = prepare_launches()
    list_flags = cpp_extension._prepare_ldflags

    def list_present(*args: Any) -> list[str]:
        return [flag for flag in list_flags(*args) if flag not in _MISSING_LIBRARIES]

    def target_flags(cflags: Any = None) -> list[str]:
        target = f"compute_{get_card().architecture.removeprefix('sm_')}"
        return [f"-gencode=arch={target},code={target}"]

    cpp_extension.CUDA_HOME = str(toolkit.home)
    cpp_extension._prepare_ldflags = list_present
    cpp_extension._get_cuda_arch_flags = target_flags
