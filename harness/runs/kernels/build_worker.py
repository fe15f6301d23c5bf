"""A worker in a release's Python that builds recorded CUDA modules, several at once.

It reads the builds from its input and answers with a line for each. A build that fails says why.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import msgspec

from harness.patching.cuda_modules import find_compiler_error
from harness.releases import cuda_toolkit  # noqa: F401 - it builds the kernels
from harness.runs.kernels.values import BuildResult, BuildsRequest
from harness.sanitizer.plugins.for_sglang.recorded_builds import RecordedBuild

_PACKAGES = re.compile(r"\S*/site-packages/")  # so that a record is of any machine


def main() -> None:
    os.nice(10)  # tests that run beside it go first
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=BuildsRequest)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what SGLang prints goes to the log
    from harness.sanitizer.device import installation
    from harness.sanitizer.plugins.for_sglang import build_limits, jit_loader

    installation.install_device()
    jit_loader.install_loader()
    if request.limit is not None:
        build_limits.limit_builds(request.limit)
    # Before there are threads: a module that two of them import at once is half there for one.
    for module in dict.fromkeys(build.module for build in request.builds):
        with contextlib.suppress(Exception):  # `build_module` says why
            importlib.import_module(module)
    with ThreadPoolExecutor(request.jobs) as pool:
        futures = [pool.submit(build_module, build) for build in request.builds]
        for future in as_completed(futures):
            answers.write(msgspec.json.encode(future.result()) + b"\n")


def build_module(build: RecordedBuild) -> BuildResult:
    from harness.sanitizer.plugins.for_sglang.recorded_builds import call_loader

    started = time.monotonic()
    problem = ""
    try:
        call_loader(build)
    except Exception as error:
        problem = find_compiler_error(f"{type(error).__name__}: {error}")
        problem = _PACKAGES.sub("", problem)
    seconds = round(time.monotonic() - started, 1)
    loader = f"{build.module}.{build.function}"
    return BuildResult(build.name, seconds, problem, loader, build.kernels)


if __name__ == "__main__":
    main()
