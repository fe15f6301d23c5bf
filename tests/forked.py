"""`unfix` in a fork of a process that has imported it, since imports dominate a short command.

python tests/forked.py SOCKET

A command has its own environment, folder, streams and exit, as a new process would. Its own
children of this project, above all workers, are forks of it for the same reason.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import io
import itertools
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from harness.cli import guard_runs
from harness.core import code_digest, machine, paths, preloading, processes
from harness.fixes.registry import toggle_catalogue
from harness.patching.child_environment import STARTUP_FOLDER
from harness.releases import managed_releases
from harness.sanitizer.triton import jit_kernels
from harness.store.prove import recorded_proofs
from reports.prove import eval_coverage
from reports.shared import html_file

PROJECT = str(paths.HARNESS_FOLDER.parent)
UNFIX = [sys.executable, "-m", "harness"]
TOY_TOGGLES = Path(__file__).parent / "toy" / "toggles"
IMPORTED = (
    "harness.fixes.adopt",
    "harness.runs.bisect",
    "harness.cli",
    "harness.runs.fuzz",
    "harness.runs.history",
    "harness.runs.matrix",
    "harness.runs.mutate",
    "harness.runs.prove",
    "harness.fixes.registry",
    "harness.releases",
    "harness.store",
    "reports",
)
DEAR = ("harness.runs.matrix.ray_executor",)  # few commands need it
ASKING = ("SGLANG_DEBUG_REVERT_PR", "SGLANG_DEBUG_ENABLE_PR", "UNFIX_CHECK")
AS_FORKS = (
    "harness.runs.bisect.commit_bisection",
    "harness.workers.command_supervisor",
    "harness.runs.mutate.worker",
    "harness.patching.planner",
    "harness.workers.guard_worker",
)  # not a fuzzing worker, which finds less in its time as a fork
_pids: list[int] = []  # of servers
_ends: dict[int, int] = {}  # in a server: where the exit code of each running command goes
PLAIN: list[str] = []  # the default search path of a Python of this project
_MOST = 1 << 18  # bytes of a command and its environment


def run_unfix(
    command: list[str], cwd: Path, env: dict[str, str], timeout: float = 600.0
) -> subprocess.CompletedProcess[str]:
    """Run `unfix` or a script that calls it, like `subprocess.run` with captured output."""
    request = {"words": command[1:], "cwd": str(cwd), "env": env}
    pipes = [os.pipe() for _ in ("out", "err", "end")]
    outputs: list[bytes] = [b""] * len(pipes)

    def listen(place: int) -> None:
        with open(pipes[place][0], "rb", buffering=0) as end:
            for part in iter(lambda: end.read(1 << 16), b""):
                outputs[place] += part

    ears = [threading.Thread(target=listen, args=(place,), daemon=True) for place in (0, 1, 2)]
    socket.send_fds(_start_server(), [json.dumps(request).encode()], [write for _, write in pipes])
    for (_, write), ear in zip(pipes, ears, strict=True):
        os.close(write)
        ear.start()
    for ear in ears:
        ear.join(timeout)
    pid, _, code = outputs[2].decode().partition(" ")
    if any(ear.is_alive() for ear in ears):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
        raise subprocess.TimeoutExpired(command, timeout, *outputs[:2])
    return subprocess.CompletedProcess(command, int(code), outputs[0].decode(), outputs[1].decode())


def call_unfix(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Call `unfix` in the project's folder, with additional variables."""
    return run_unfix([*UNFIX, *words], paths.project_folder(), {**os.environ, **more})


def list_left_processes() -> list[str]:
    """Return processes that ended commands left; an ending one has no command line any more."""
    found = []
    for pid in itertools.chain.from_iterable(map(processes.iterate_descendants, _pids)):
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
    return list(filter(None, found))


@functools.cache
def _start_server() -> socket.socket:
    """Start one server for this process; it ends when our end of the socket is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, __file__, str(theirs.fileno())]
    served = {**os.environ, "PYTHONPATH": PROJECT}
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=served)
    _pids.append(process.pid)
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


# In the server


def serve_commands(line: socket.socket) -> dict[str, Any]:
    """Fork for each command; return in the fork, with the request."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(line, _MOST, 3)
        if not request:
            os._exit(0)
        out, err, end = descriptors
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if not pid:
            break
        _ends[pid] = end
        os.write(end, f"{pid} ".encode())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        os.close(out)
        os.close(err)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    for other in [line.detach(), end, *_ends.values()]:
        os.close(other)
    for number, stream in ((1, out), (2, err)):
        os.dup2(stream, number)
        os.close(stream)
    return dict(json.loads(request))


def _report_exits(*_: Any) -> None:
    """Report the exit codes of commands; those of their orphans do not matter."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            if (end := _ends.pop(pid, None)) is not None:
                os.write(end, str(os.waitstatus_to_exitcode(status)).encode())
                os.close(end)


class ForkedProcess(subprocess.Popen[Any]):
    """A process that a command starts: a fork of it if that is as good as a new one."""

    def __init__(self, args: Any, **more: Any) -> None:
        environment = more.get("env") or os.environ
        if _is_ours(args) and not _begins_with_toggles(environment):
            kept_descriptors = {0, 1, 2, *more.get("pass_fds", ())}
            more["preexec_fn"] = functools.partial(
                _begin_anew, args[1:], dict(environment), kept_descriptors
            )
        super().__init__(args, **more)


def _is_ours(command: Any) -> bool:
    if isinstance(command, str) or command[0] != sys.executable:
        return False
    what, *words = command[2:] if command[1] == "-P" else command[1:]
    return what == "-c" or (what == "-m" and words[0] in AS_FORKS)


def _begins_with_toggles(environment: Mapping[str, str]) -> bool:
    has_toggles = any(environment.get(name) for name in ASKING)
    return has_toggles or str(STARTUP_FOLDER) in environment.get("PYTHONPATH", "")


def _begin_anew(
    words: list[str], environment: dict[str, str], kept_descriptors: set[int]
) -> NoReturn:
    """Drop the inherited state that a new process would not have."""
    code: Any = 1
    try:
        # The starter waits until the last of these is closed.
        for number in {int(name) for name in os.listdir("/proc/self/fd")} - kept_descriptors:
            with contextlib.suppress(OSError):
                os.close(number)
        signal.set_wakeup_fd(-1)
        for one in signal.valid_signals():
            if callable(signal.getsignal(one)):
                how = signal.default_int_handler if one == signal.SIGINT else signal.SIG_DFL
                signal.signal(one, how)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))
        become_command(words, environment)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def become_command(words: list[str], environment: dict[str, str]) -> None:
    """Run `python WORDS` in this process and its folder."""
    os.environ.clear()
    os.environ.update(environment)
    here = [] if words[0] == "-P" else [os.getcwd()]
    sys.path[:] = [*here, *filter(None, os.environ.get("PYTHONPATH", "").split(":")), *PLAIN]
    importlib.invalidate_caches()
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    what, *words = words[1:] if words[0] == "-P" else words
    if what == "-m":
        sys.argv = words
        if not hasattr(sys.modules.get(words[0]), "__path__"):
            sys.modules.pop(words[0], None)
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        sys.argv = [what, *words[1:]]
        exec(words[0], {"__name__": "__main__"})
    else:
        sys.path[0] = str(Path(what).parent)
        sys.argv = [what, *words]
        runpy.run_path(what, run_name="__main__")


def preload_values() -> None:
    """Compute what each command would: its process need not."""
    toggle_catalogue.load_catalogue([TOY_TOGGLES])
    recorded_proofs.load_proofs([release.name for release in managed_releases.list_releases()])
    machine.describe_commit()
    # A command of `calling.Caller` reads them for its own PYTHONPATH.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join((PROJECT, str(TOY_TOGGLES.parent))))
        machine.list_installed_packages(Path(sys.executable))
    machine.collect_machine_facts()
    code_digest.digest_code("cli")
    guard_runs.digest_project_guards()
    eval_coverage.load_eval_coverage()
    templates = html_file.make_environment()
    for name in templates.list_templates(extensions=["j2"]):
        templates.get_template(name)
    with tempfile.TemporaryDirectory() as empty, contextlib.redirect_stdout(io.StringIO()):
        nothing = ["--noconftest", "-c", os.devnull, "--rootdir", empty, empty]
        pytest.main(["--collect-only", *nothing])  # imports its plugins
    sys.modules.pop("xdist.plugin")  # gives its workers the search path that it was imported with
    list(jit_kernels.iterate_loaded_kernels())  # it remembers the modules that it has seen


def main() -> None:
    PLAIN[:] = [entry for entry in sys.path[1:] if entry != PROJECT]
    for name in IMPORTED:
        package = importlib.import_module(name)
        for _, module, _ in pkgutil.walk_packages(package.__path__, f"{name}."):
            if module in DEAR:
                continue
            with contextlib.suppress(ImportError):  # modules for a release's own Python
                importlib.import_module(module)
    preload_values()
    gc.collect()
    gc.freeze()
    preloading.collapse_into_huge_pages()
    processes.adopt_orphans()
    signal.signal(signal.SIGCHLD, _report_exits)
    request = serve_commands(socket.socket(fileno=int(sys.argv[1])))
    os.chdir(request["cwd"])
    subprocess.Popen = ForkedProcess  # type: ignore[assignment,misc]
    become_command(request["words"], request["env"])


if __name__ == "__main__":
    main()
