"""A process that has imported SGLang, from which servers are forked.

    python -m harness.workers.servers.zygote READ WRITE        (in a release's own Python, by `Server`)

Importing takes most of a server's start, three times over: the server, its scheduler and its
detokenizer each do it. Here it is done once; a forked server is up in seconds, and toggles are put
in live, in the fork alone. Only where no GPU is used: no fork can use a CUDA device.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import pkgutil
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from harness.core import preloading, processes
from harness.core.pipes import PipeEnd
from harness.patching import bootstrap, live_engine
from harness.workers.servers import adaptations, supervisor

# What servers import once they run, each anew: half of a scheduler's start.
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
REFUSED_EXIT_CODE = 97  # the exit code of a server that was never started


def preload_server() -> None:
    """Import what a server and its workers import, and what runs their kernels."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what a release imports, no guard is asked
        import sglang.srt.entrypoints.http_server
        import sglang.srt.managers.detokenizer_manager
        import sglang.srt.managers.scheduler
        import sglang.srt.models.registry  # noqa: F401  all model classes

        for name in LATE_IMPORTS:
            for module in _list_with_submodules(name):
                with contextlib.suppress(Exception, SystemExit):  # of another release or machine
                    importlib.import_module(module)
    adaptations.preload_kernels()


def _list_with_submodules(name: str) -> Iterator[str]:
    yield name
    package = sys.modules.get(name)
    for _, module, _ in pkgutil.iter_modules(getattr(package, "__path__", ()), f"{name}."):
        yield module


def run_zygote(read: int, write: int) -> NoReturn:
    processes.adopt_orphans()
    line, parent = PipeEnd(read, write), os.getppid()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    code = 0
    try:
        preloading.pause_gc_for_imports()
        preload_server()
        preloading.freeze_for_forks()
        _send_message(line, {"ready": os.getpid()})
        for asked in _receive_requests(line, parent):
            pid = fork_server(asked)
            _send_message(line, {"started": pid, "folder": asked["folder"]})
    except BaseException as error:
        code = 1
        traceback.print_exc()
        with contextlib.suppress(OSError):
            _send_message(line, {"failed": f"{type(error).__name__}: {error}"})
    sys.stdout.flush()
    processes.kill_descendants(os.getpid())
    os._exit(code)


def _receive_requests(pipe: PipeEnd, parent: int) -> Iterator[Any]:
    while os.getppid() == parent and not pipe.is_peer_closed:
        if select.select([pipe.read_end], [], [], 1.0)[0]:
            yield from map(json.loads, pipe.receive_lines())
        else:
            _reap_children()


def _reap_children() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _send_message(pipe: PipeEnd, message: dict[str, Any]) -> None:
    pipe.send(json.dumps(message).encode())


def fork_server(request: dict[str, Any]) -> int:
    """Fork a keeper with a server below it; gives the keeper's pid."""
    house = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        processes.adopt_orphans()
        folder = Path(request["folder"])
        me = os.getpid()
        server = os.fork()
        if not server:
            _run_in_server_process(request, folder, me)
        supervisor.supervise_server(server, folder, house)
    except BaseException:
        with open(Path(request["folder"]) / "log", "a") as log:  # where its death is looked for
            traceback.print_exc(file=log)
    else:
        code = 0
    finally:
        os._exit(code)


def _run_in_server_process(request: dict[str, Any], folder: Path, supervisor_pid: int) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        supervisor.bind_to_supervisor(supervisor_pid)
        supervisor.redirect_to_log(folder / "log")
        faulthandler.enable()  # says where a rank hangs
        os.environ.update(request["environment"])
        attestations = Path(request["attestations"])
        os.environ[bootstrap.ATTESTATIONS_VARIABLE] = str(attestations)
        live_engine.engine.recorder.set_folder(attestations)
        _apply_toggles(request, folder)
        adaptations.apply_adaptations(request["adaptations"])
        _use_fork_start_method()
        adaptations.launch_server_process(request["words"])
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


def _apply_toggles(request: dict[str, Any], folder: Path) -> None:
    """Put the toggles in; what only an import can change is refused, and started afresh instead."""
    from harness import toggles
    from harness.core.errors import UnfixError

    folders = [Path(name) for name in request["folders"]]
    try:
        for words, put in (("revert", toggles.reverted), ("enable", toggles.enabled)):
            if request[words]:
                put(*request[words], folders=folders).__enter__()
    except UnfixError as error:
        (folder / "refused").write_text(str(error))
        os._exit(REFUSED_EXIT_CODE)


def _use_fork_start_method() -> None:
    """Have the server fork its workers, too: what it has imported, they need not."""
    import multiprocessing

    start = multiprocessing.set_start_method
    start("fork", force=True)
    multiprocessing.set_start_method = lambda method, force=False: None


if __name__ == "__main__":
    preloading.with_large_stack(lambda: run_zygote(int(sys.argv[1]), int(sys.argv[2])))
