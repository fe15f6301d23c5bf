"""The program in the place of ptxas: writes checks into a module's PTX, then runs the real ptxas.

    python -m harness.kernels.cuda.checked_ptxas REAL FOLDER CHECKS [ptxas's own arguments]

What the checks are is saved as FOLDER/KEY.json; the module carries KEY in the name of a variable.
A module that cannot be rewritten is assembled as it is, and its kernels are listed as unchecked.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.core.files import write_atomically
from harness.kernels.ptx.instrumentation import instrument_module
from harness.kernels.ptx.instrumented_kernel import write_kernels


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
        file.write_text(module.text)
        code = subprocess.call([real, *own[:place], str(file), *own[place + 1 :]])
    if code:
        print("unfix: ptxas refuses the module with checks; it is built without", file=sys.stderr)
        return subprocess.call([real, *own])
    write_atomically(Path(folder, f"{module.key}.ptx"), module.text)
    write_kernels(Path(folder, f"{module.key}.json"), module.kernels)
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main(sys.argv[1:]))
