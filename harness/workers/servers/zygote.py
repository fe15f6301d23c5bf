"""A process that has imported SGLang, from which servers are forked.

    python -m harness.workers.servers.zygote READ WRITE        (in a release's own Python)

Imports take most of a server's start, three times over: the server, its scheduler and its
detokenizer each import SGLang. Here it is imported once; a forked server is ready in seconds, and
its toggles are applied live, in the fork alone. Not for real GPUs: no fork can use a CUDA device.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import pkgutil
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from harness.core import child_process, preloading, processes
from harness.core.pipes import PipeEnd, serve_until
from harness.patching import bootstrap, import_origins, live_engine
from harness.sanitizer.watch import virtual_process
from harness.workers import command_supervisor
from harness.workers.command_supervisor import POLL_SECONDS, CommandExit
from harness.workers.servers import adaptations

# Modules that each server otherwise imports late: half of a scheduler's start.
LATE_IMPORTS = (
    "sglang.srt.arg_groups",
    "sglang.srt.constrained.xgrammar_backend",
    "sglang.srt.distributed.device_communicators",
    "sglang.srt.dllm.algorithm",
    "sglang.srt.entrypoints.openai.serving_responses",
    "sglang.srt.layers.attention.torch_native_backend",
    "sglang.srt.layers.attention.triton_backend",
    "sglang.srt.mem_cache.rust_tree_core.adapter",
    "sglang.kernels.ops.attention.decode_attention",
    "sglang.kernels.ops.attention.extend_attention",
    "uvicorn.protocols.http.h11_impl",
)
REFUSED_EXIT_CODE = 97  # the exit code of a server whose toggles cannot be applied live
REFUSAL_FILE = "refused"  # the file with the reason


class ServerRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A request to fork a server."""

    folder: str
    arguments: list[str]  # SGLang's arguments
    environment: dict[str, str]
    attestations: str
    revert: list[str] = []
    enable: list[str] = []
    toggle_folders: list[str] = []
    adaptations: list[str] = []
    is_virtual: bool = False


def preload_server() -> None:
    """Import the modules of a server, of its workers, and of their kernels."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of a release's imports do not matter here
        import sglang.srt.entrypoints.http_server
        import sglang.srt.managers.detokenizer_manager
        import sglang.srt.managers.scheduler
        import sglang.srt.models.registry  # noqa: F401  all model classes

        for name in LATE_IMPORTS:
            for module in _list_with_submodules(name):
                with contextlib.suppress(Exception, SystemExit):  # of another release
                    importlib.import_module(module)
    adaptations.preload_kernels()


def _list_with_submodules(name: str) -> Iterator[str]:
    yield name
    package = sys.modules.get(name)
    for _, module, _ in pkgutil.iter_modules(getattr(package, "__path__", ()), f"{name}."):
        yield module


def run_zygote(read: int, write: int) -> NoReturn:
    processes.adopt_orphans()
    pipe, parent = PipeEnd(read, write), os.getppid()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    code = 0
    try:
        import_origins.check_origins()
        import_origins.install_check(bootstrap.exit_process)
        preloading.pause_gc_for_imports()
        preload_server()
        preloading.freeze_for_forks()
        _send_message(pipe, {"ready": os.getpid()})
        _serve_requests(pipe, parent)
    except BaseException as error:
        code = 1
        traceback.print_exc()
        with contextlib.suppress(OSError):
            _send_message(pipe, {"failed": f"{type(error).__name__}: {error}"})
    sys.stdout.flush()
    processes.kill_descendants(os.getpid())
    os._exit(code)


def _serve_requests(pipe: PipeEnd, parent: int) -> None:
    def fork_requested() -> None:
        for line in pipe.receive_lines():
            request = msgspec.json.decode(line, type=ServerRequest)
            _send_message(pipe, {"started": fork_server(request), "folder": request.folder})

    def is_run_gone() -> bool:
        return os.getppid() != parent or pipe.is_peer_closed

    while not serve_until(is_run_gone, lambda: {pipe: fork_requested}, 1.0):
        _reap_children()


def _reap_children() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _send_message(pipe: PipeEnd, message: dict[str, Any]) -> None:
    pipe.send(json.dumps(message).encode())


def fork_server(request: ServerRequest) -> int:
    """Fork a supervisor with a server below it; return the supervisor's pid."""
    parent = os.getpid()

    def supervise_in_fork() -> None:
        folder = Path(request.folder)
        child_process.redirect_output(folder / "log")
        command_supervisor.supervise_commands(partial(_run_server, request, parent), folder)

    return child_process.fork_process(
        supervise_in_fork, dies_with_parent=False, new_session=True
    ).pid


def _run_server(request: ServerRequest, zygote_pid: int) -> CommandExit:
    server = child_process.fork_process(partial(_run_in_server_process, request, os.getpid()))
    while not command_supervisor.wait_while_wanted(server, POLL_SECONDS, zygote_pid):
        pass
    return command_supervisor.describe_end(server.reap())


def _run_in_server_process(request: ServerRequest, supervisor_pid: int) -> NoReturn:
    code = 1
    try:
        command_supervisor.bind_to_supervisor(supervisor_pid)
        faulthandler.enable()  # writes the stacks of a rank that hangs
        os.environ.update(request.environment)
        attestations = Path(request.attestations)
        os.environ[bootstrap.ATTESTATIONS_VARIABLE] = str(attestations)
        live_engine.engine.recorder.set_folder(attestations)
        if request.is_virtual:
            virtual_process.record_below(Path(request.folder))
        _apply_toggles(request)
        adaptations.apply_adaptations(request.adaptations)
        _use_fork_start_method()
        adaptations.launch_server_process(request.arguments)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
        if isinstance(error.code, str):
            print(error.code, flush=True)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _apply_toggles(request: ServerRequest) -> None:
    """Apply the toggles live; refuse the server if one needs an import of its own."""
    from harness import toggles
    from harness.core.errors import UnfixError

    folders = [Path(name) for name in request.toggle_folders]
    try:
        for ids, apply in ((request.revert, toggles.reverted), (request.enable, toggles.enabled)):
            if ids:
                apply(*ids, folders=folders).__enter__()
    except UnfixError as error:
        Path(request.folder, REFUSAL_FILE).write_text(str(error))
        os._exit(REFUSED_EXIT_CODE)


def _use_fork_start_method() -> None:
    """Make the server fork its workers as well, so that they share its imports."""
    import multiprocessing

    start = multiprocessing.set_start_method
    start("fork", force=True)
    multiprocessing.set_start_method = lambda method, force=False: None


if __name__ == "__main__":
    preloading.with_large_stack(lambda: run_zygote(int(sys.argv[1]), int(sys.argv[2])))
