"""pytest in forks of a process that has imported torch and Triton, as most suites would first.

python preloaded_pytest.py, with a request a line: the arguments of pytest, and the names of
environment variables with their values. Each request is answered by a line: exit code, output and
errors of the fork that ran it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any, BinaryIO, NoReturn

import pytest
import torch  # noqa: F401
import triton  # noqa: F401


def answer_request(arguments: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        pid = os.fork()
        if not pid:
            os.environ.update(environment)
            _run_pytest(arguments, output, errors)
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status), _read_text(output), _read_text(errors)


def _run_pytest(arguments: list[str], output: BinaryIO, errors: BinaryIO) -> NoReturn:
    code = 1
    try:
        os.dup2(output.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        code = int(pytest.main(arguments))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _read_text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode()


if __name__ == "__main__":
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        print(json.dumps(answer_request(**request)), flush=True)
