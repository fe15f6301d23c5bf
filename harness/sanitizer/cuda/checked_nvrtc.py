"""Kernels that NVRTC compiles in this process, with the checks that nvcc's get.

NVRTC compiles as it was asked, with line numbers; the PTX goes to the checked toolkit's ptxas, and
what that assembles is the program's machine code from then on. A program that cannot have checks
stays as NVRTC made it. The driver's stand-in adds the parameter to its launches.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.core.code_digest import compute_digest
from harness.core.errors import NotReadyError
from harness.core.files import write_atomically
from harness.core.stderr import report_to_stderr
from harness.sanitizer.cuda import library_standins
from harness.sanitizer.cuda.checked_toolchain import CheckedToolkit
from harness.sanitizer.ptx.instrumented_kernel import MARKED_KEY

_SOURCE = Path(__file__).with_name("nvrtc_standin.c")
_COMPILE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)
)
_CREATE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
_START = ctypes.CFUNCTYPE(None)
_TARGET = re.compile(r"^\.target\s+(sm_\w+)", re.MULTILINE)
_FILE = re.compile(r'^(\s*\.file\s+\d+\s+)"([^"]+)"', re.MULTILINE)
_LINKED_LATER = ("-dc", "--device-c")
_RELOCATABLE = ("-rdc", "--relocatable-device-code")
_LINES = ("-lineinfo", "--generate-line-info")
_DEBUG = ("-G", "--device-debug")
_TIMEOUT = 600.0  # seconds that an assembly may take
_OTHER_USERS = ("cupy", "cuda")  # packages that launch kernels without torch
_loaded: list[Any] = []  # libraries and functions that C calls


def install_standins(toolkit: CheckedToolkit, start_checks: Callable[[], Any]) -> None:
    """Load the stand-ins, then have this process build with checks.

    `start_checks` is called before the first checked module is loaded. Invariant: no kernel is
    built with a parameter that its launch here would lack. So a process that cannot load the
    driver's stand-in must end (an error is raised); without a driver, nothing is launched.
    """
    if importlib.util.find_spec("torch") is None:  # checks need it
        toolkit.restore_variables(os.environ)
        if any(map(importlib.util.find_spec, _OTHER_USERS)):
            report_to_stderr("this process has no torch: its CUDA kernels have no checks")
        return
    if not toolkit.driver.exists():
        if library_standins.has_driver():
            raise NotReadyError(f"{toolkit.driver} is missing, and this machine has a driver")
        toolkit.set_variables(os.environ)
        return
    driver = library_standins.load_standin(toolkit.driver)
    start = _START(lambda: _start_session(start_checks))
    driver.unfix_set_start_hook(start)
    _loaded.extend((driver, start))
    try:
        for real in library_standins.find_nvrtc_libraries(toolkit.home):
            _loaded.append(CheckedNvrtc(toolkit, real))
    except Exception as error:
        report_to_stderr(f"kernels that NVRTC compiles here have no checks: {error}")
    toolkit.set_variables(os.environ)


def _start_session(start_checks: Callable[[], Any]) -> None:
    try:
        start_checks()
    except BaseException as error:  # its launches say that they have no checks
        report_to_stderr(f"checks of CUDA kernels do not start: {error!r}")


class CheckedNvrtc:
    """One version of NVRTC in this process."""

    def __init__(self, toolkit: CheckedToolkit, real: Path) -> None:
        self._toolkit = toolkit
        digest = compute_digest(str(real), str(real.stat().st_mtime_ns))[:16]
        file = toolkit.folder / f"nvrtc-{digest}" / real.name
        if not file.exists():
            library_standins.build_standin(file, real, _SOURCE, "REAL_NVRTC")
        self._standin = library_standins.load_standin(file)
        self._real = ctypes.CDLL(str(real))
        self._sources: dict[int, tuple[bytes, str]] = {}
        self._hooks = _COMPILE(self._compile), _CREATE(self._create)
        self._standin.unfix_set_compiler(*self._hooks)

    def _create(self, program: int, source: bytes, name: bytes) -> None:
        self._sources[program] = source, Path(name.decode(errors="replace")).name

    def _compile(self, program: int, count: int, options: Any) -> int:
        """Compile a program; whatever fails beside NVRTC itself leaves it without checks."""
        words = [options[place] for place in range(count)]
        try:
            return self._compile_with_checks(program, words)
        except BaseException as error:  # an escape from here would answer C with garbage
            report_to_stderr(f"{self._get_name(program)} has no checks: {error!r}")
            return self._run_real(program, words)

    def _compile_with_checks(self, program: int, words: Sequence[bytes]) -> int:
        texts = [word.decode(errors="surrogateescape") for word in words]
        added = [] if any(text in (*_LINES, *_DEBUG) for text in texts) else [b"-lineinfo"]
        result = self._run_real(program, [*words, *added])
        if result and added:
            return self._run_real(program, words)
        try:
            if not result:
                self._add_checks(program, texts)
        except Exception as error:
            report_to_stderr(f"{self._get_name(program)} has no checks: {error!r}")
        return result

    def _run_real(self, program: int, words: Sequence[bytes]) -> int:
        array = (ctypes.c_char_p * len(words))(*words)
        handle = ctypes.c_void_p(program)
        result: int = self._real.nvrtcCompileProgram(handle, len(words), array)
        return result

    def _get_name(self, program: int) -> str:
        return self._sources.get(program, (b"", "a program of NVRTC"))[1]

    def _add_checks(self, program: int, words: list[str]) -> None:
        text = self._read_ptx(program)
        if ".entry" not in text or is_to_be_linked(words):
            return  # it is no kernel, or is linked to one later
        text = self._name_source(program, text)
        ptx, cubin = assemble_with_checks(self._toolkit, text, list_assembler_options(words))
        if not ptx:
            return  # the assembler has said why
        has_code = self._measure(program, "CUBIN") > 0  # it was compiled for one card
        self._standin.unfix_set_output(
            ctypes.c_void_p(program),
            ptx + b"\0",
            ctypes.c_size_t(len(ptx) + 1),
            cubin,
            ctypes.c_size_t(len(cubin) if has_code else 0),
        )

    def _measure(self, program: int, form: str) -> int:
        size = ctypes.c_size_t()
        find_size = getattr(self._real, f"nvrtcGet{form}Size")
        return 0 if find_size(ctypes.c_void_p(program), ctypes.byref(size)) else size.value

    def _read_ptx(self, program: int) -> str:
        data = ctypes.create_string_buffer(self._measure(program, "PTX"))
        if len(data):
            self._real.nvrtcGetPTX(ctypes.c_void_p(program), data)
        return data.value.decode()

    def _name_source(self, program: int, text: str) -> str:
        """Save a program's source, which no file may have, and have its lines name that file."""
        source, name = self._sources.get(program, (b"", ""))

        def rename(found: re.Match[str]) -> str:
            path = Path(found[2])
            if not source or path.name != name or path.exists():
                return found[0]
            own_name = name if "." in name else f"{name}.cu"
            file = self._toolkit.folder / "sources" / compute_digest(source)[:16] / own_name
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(file, source.decode(errors="replace"))
            return f'{found[1]}"{file}"'

        return _FILE.sub(rename, text)


def _pair_options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each option with its value, or what would be one: the next word."""
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not equals and place + 1 < len(words):
            value = words[place + 1]
        yield name, value


def is_to_be_linked(words: Sequence[str]) -> bool:
    """Return whether a program's kernels are linked with others later."""
    return any(
        name in _LINKED_LATER or (name in _RELOCATABLE and value == "true")
        for name, value in _pair_options(words)
    )


def list_assembler_options(words: Sequence[str]) -> list[str]:
    """Return the options of NVRTC's own call of ptxas."""
    found: list[str] = []
    for name, value in _pair_options(words):
        if name in ("--ptxas-options", "-Xptxas"):
            found += value.split(",")
        elif name in ("--maxrregcount", "-maxrregcount"):
            found.append(f"--maxrregcount={value}")
        elif name in _DEBUG:
            found.append("-g")
    return found


def assemble_with_checks(
    toolkit: CheckedToolkit, text: str, options: Sequence[str]
) -> tuple[bytes, bytes]:
    """Return the text with checks and its machine code; both are empty if it could have none."""
    target = _TARGET.search(text)
    if target is None:
        raise ValueError("its PTX has no .target")
    with tempfile.TemporaryDirectory() as folder:
        file, code = Path(folder, "module.ptx"), Path(folder, "module.cubin")
        file.write_text(text)
        words = [str(toolkit.home / "bin" / "ptxas"), f"-arch={target[1]}", str(file)]
        words += ["-o", str(code), *options]
        done = subprocess.run(words, capture_output=True, text=True, timeout=_TIMEOUT)
        if done.returncode:
            raise ValueError(f"the toolkit's ptxas refuses its PTX: {done.stderr[-1000:]}")
        cubin = code.read_bytes()
    key = MARKED_KEY.search(cubin)
    if key is None:
        report_to_stderr(done.stderr.strip() or "a program of NVRTC has no checks")
        return b"", b""
    return (toolkit.kernels / f"{key[1].decode()}.ptx").read_bytes(), cubin
