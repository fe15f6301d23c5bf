"""The program in the place of ptxas: writes checks into a module's PTX, then runs the real ptxas.

    python -m harness.sanitizer.cuda.checked_ptxas REAL FOLDER CHECKS [ptxas's own arguments]

What the checks are is saved as FOLDER/KEY.json; the module carries KEY in the name of a variable.
A module that cannot be rewritten is assembled as it is, and its kernels are listed as unchecked.

Checks take registers, and a block whose threads need too many cannot be launched. A kernel that
says nothing of its blocks may be launched with as many threads as its registers allow; so it gets a
limit where the checks would take it over one (`_BLOCK_LIMITS`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.core.files import write_atomically
from harness.sanitizer.ptx.instrumentation import instrument_module
from harness.sanitizer.ptx.instrumented_kernel import write_kernels

_BLOCK_LIMITS = (64, 128)  # registers with which blocks of 1,024 and of 512 threads can be launched
_MAX_REGISTERS = 255
_REGISTERS = re.compile(r"Compiling entry function '([^']+)'[\s\S]*?Used (\d+) registers")
_INFORMATION = re.compile(r"ptxas info\s*:|\s+\d+ bytes stack frame")


def main(arguments: list[str]) -> int:
    real, folder, checks, *own = arguments
    place = next(
        (n for n, word in enumerate(own) if word.endswith(".ptx") and Path(word).is_file()), None
    )
    if place is None:  # a question for its version
        return subprocess.call([real, *own])
    try:
        text = Path(own[place]).read_text()
        module = instrument_module(text, tuple(checks.split(",")))
    except Exception as error:  # whatever it is, the build goes on
        print(f"unfix: {own[place]} has no checks: {error!r}", file=sys.stderr)
        return subprocess.call([real, *own])
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary, Path(own[place]).name)
        code, checked_text = _assemble_with_limits(real, own, place, file, module.text)
    if code:
        print("unfix: ptxas refuses the module with checks; it is built without", file=sys.stderr)
        return subprocess.call([real, *own])
    write_atomically(Path(folder, f"{module.key}.ptx"), checked_text)
    write_kernels(Path(folder, f"{module.key}.json"), module.kernels)
    return 0


def _assemble_with_limits(
    real: str, own: list[str], place: int, file: Path, text: str
) -> tuple[int, str]:
    """Assemble a text as `file`; return ptxas's code, and the text with the limits it needs."""
    words = [real, *own[:place], str(file), *own[place + 1 :]]
    file.write_text(text)
    code, used = _run_ptxas(words)
    over = [
        name
        for name, count in used.items()
        if count > min(_BLOCK_LIMITS) and not _limits_blocks(text, name)
    ]
    if code or not over:
        return code, text
    _, plain = _run_ptxas([real, *_write_elsewhere(own, file.with_suffix(".plain"))])
    limits = {name: _find_limit(plain.get(name, 0)) for name in over}
    limits = {name: limit for name, limit in limits.items() if used[name] > limit}
    if limits:
        text = _limit_registers(text, limits)
        file.write_text(text)
        code, _ = _run_ptxas(words)
    return code, text


def _run_ptxas(words: list[str]) -> tuple[int, dict[str, int]]:
    """Run ptxas; return its code, and the registers of each kernel."""
    done = subprocess.run([*words, "-v"], stderr=subprocess.PIPE, text=True, errors="replace")
    lines = done.stderr.splitlines(keepends=True)
    sys.stderr.write("".join(line for line in lines if not _INFORMATION.match(line)))
    return done.returncode, {name: int(count) for name, count in _REGISTERS.findall(done.stderr)}


def _write_elsewhere(own: list[str], file: Path) -> list[str]:
    changed = list(own)
    for at, word in enumerate(own[:-1]):
        if word in ("-o", "--output-file"):
            changed[at + 1] = str(file)
    if changed == own:  # the plain module would take the place of the one with checks
        raise ValueError(
            f"nvcc calls ptxas without `-o FILE` as two words, so its output cannot be told "
            f"apart: {' '.join(own)}"
        )
    return changed


def _find_limit(registers: int) -> int:
    """Return the limit of registers that keeps the blocks that a kernel could have without one."""
    return next((limit for limit in _BLOCK_LIMITS if registers <= limit), _MAX_REGISTERS)


def _find_head(text: str, entry: str) -> tuple[int, int]:
    """Return where a kernel's head starts, and where its body does; (0, 0) if it has none here."""
    found = re.search(rf"\.entry\s+{re.escape(entry)}\s*[({{]", text)
    return (0, 0) if found is None else (found.start(), text.index("{", found.start()))


def _limits_blocks(text: str, entry: str) -> bool:
    start, body = _find_head(text, entry)
    return not body or bool(re.search(r"\.(maxntid|reqntid|maxnreg)\b", text[start:body]))


def _limit_registers(text: str, limits: dict[str, int]) -> str:
    for entry, limit in limits.items():
        _, body = _find_head(text, entry)
        text = f"{text[:body]}.maxnreg {limit}\n{text[body:]}"
    return text


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main(sys.argv[1:]))
