"""Runs test files of unittest in forks: a script for a release's Python, with nothing of ours.

It reads a job from each line of its input, `{"file": path, "root": folder}`, and writes a line with
what the file did: a test (`test_*.py`), the script `repro.py`, whose exit code says whether the bug
is there, or launches of kernels to be timed on a GPU (`LAUNCHES` of any other file, by label).
`root` holds the package that the fork imports. A release's first import takes seconds, most of them
for other packages: with `--preload` forks find those imported, the first one the slow ones. Without
it each fork begins bare, as CUDA needs it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import os
import runpy
import signal
import sys
import unittest
from collections.abc import Iterable
from typing import Any

PROCESSOR_SECONDS = 300
# Most of the time of a first import; the first fork finds them imported as well.
SLOW_MODULES = ("torch._dynamo", "torch.distributed.tensor", "transformers.modeling_utils")


class TestRecord(unittest.TextTestResult):
    """A result that also has the class and the message of each error."""

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self.bad: list[tuple[str, str, str]] = []

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self._add_error(test, err[1])

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self._add_error(test, err[1])

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._add_error(subtest, err[1])

    def _add_error(self, test: unittest.TestCase, error: BaseException) -> None:
        # SGLang's base class repeats a failed test, and raises an error of its own in the end.
        while type(error) is Exception and "retry()" in str(error) and error.__context__:
            error = error.__context__
        self.bad.append((str(test), type(error).__name__, str(error).strip()[:2000]))


def run_file(file: str, root: str) -> dict[str, Any]:
    sys.path.insert(0, root)
    log = io.StringIO()
    name = os.path.basename(file)
    run = run_test if name.startswith("test_") else run_script if name == "repro.py" else time_file
    answer = run(file, log)
    answer["log"] = log.getvalue()
    answer["sglang"] = getattr(sys.modules.get("sglang"), "__file__", "") or ""
    names = [each for each in sys.modules if each not in ("sglang", name[:-3])]
    answer["foreign"] = [name for name in names if name.partition(".")[0] in ("harness", "unfix")]
    answer["modules"] = [name for name in names if name.partition(".")[0] != "sglang"]
    return answer


def run_script(file: str, log: io.StringIO) -> dict[str, Any]:
    bad: list[tuple[str, str, str]] = []
    sys.argv = [file]
    try:
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            runpy.run_path(file, run_name="__main__")
    except SystemExit as error:
        if error.code:
            bad = [(os.path.basename(file), "SystemExit", str(int(error.code)))]
    except Exception as error:
        bad = [(os.path.basename(file), type(error).__name__, str(error))]
    return {"ran": 1, "bad": bad}


def time_file(file: str, log: io.StringIO) -> dict[str, Any]:
    """Time the launches of a file in a CUDA graph, so that none waits for this process."""
    import torch
    from triton.testing import do_bench_cudagraph

    if not torch.cuda.is_available():
        return {"problem": "finds no GPU"}
    try:
        launches = runpy.run_path(file)["LAUNCHES"]
        times = {
            label: 1000 * do_bench_cudagraph(launch, rep=200, return_mode="median")
            for label, launch in launches.items()
        }
    except Exception as error:
        return {"problem": f"ends with {type(error).__name__}: {error}"}
    return {"ran": len(times), "microseconds": times}


def run_test(file: str, log: io.StringIO) -> dict[str, Any]:
    name = os.path.basename(file).removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    answer: dict[str, Any] = {}
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        answer["problem"] = f"it cannot be imported: {type(error).__name__}: {error}"
    else:
        suite = unittest.defaultTestLoader.loadTestsFromModule(module)
        runner = unittest.TextTestRunner(log, resultclass=TestRecord, verbosity=2)
        with contextlib.redirect_stdout(io.StringIO()):
            result = runner.run(suite)
        answer["ran"], answer["bad"] = result.testsRun, getattr(result, "bad", [])
        answer["skipped"] = [reason for _, reason in result.skipped]
    return answer


def run_in_fork(job: dict[str, str]) -> dict[str, Any]:
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(reading)
            # Each ends the fork: a busy machine takes longer, and one that waits takes no time.
            signal.setitimer(signal.ITIMER_PROF, PROCESSOR_SECONDS)
            signal.alarm(10 * PROCESSOR_SECONDS)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(1, 2)
            with os.fdopen(writing, "w") as pipe:
                pipe.write(json.dumps(run_file(job["file"], job["root"])))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        data = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if data and not status:
        answer: dict[str, Any] = json.loads(data)
        return answer
    word = f"by signal {-status}" if status < 0 else f"with {status}"
    return {"problem": f"its process ended {word}"}


def main() -> None:
    preloads = "--preload" in sys.argv
    if preloads:
        preload_modules(SLOW_MODULES)
    for line in sys.stdin:
        answer = run_in_fork(json.loads(line))
        modules = answer.pop("modules", [])
        print(json.dumps(answer), flush=True)
        if preloads and modules:
            preloads = False
            preload_modules(modules)


def preload_modules(names: Iterable[str]) -> None:
    with (
        open(os.devnull, "w") as quiet,
        contextlib.redirect_stdout(quiet),
        contextlib.redirect_stderr(quiet),
    ):
        for name in names:
            with contextlib.suppress(Exception, SystemExit):  # a fork that needs it says so
                importlib.import_module(name)


if __name__ == "__main__":
    main()
