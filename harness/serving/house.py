"""A process that has imported SGLang, from which servers are forked.

    python -m harness.serving.house READ WRITE        (in a release's own Python, by `Server`)

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

from harness import forking, processes
from harness.lines import Line
from harness.patching import boot, live
from harness.serving import adaptations, keeper

# What servers import once they run, each anew: half of a scheduler's start.
LATE = (
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
REFUSED = 97  # the exit code of a server that was never started


def prepare() -> None:
    """Import what a server and its workers import, and what runs their kernels."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what a release imports, no guard is asked
        import sglang.srt.entrypoints.http_server
        import sglang.srt.managers.detokenizer_manager
        import sglang.srt.managers.scheduler
        import sglang.srt.models.registry  # noqa: F401  all model classes

        for name in LATE:
            for module in _with_those_below(name):
                with contextlib.suppress(Exception, SystemExit):  # of another release or machine
                    importlib.import_module(module)
    adaptations.make_ready()


def _with_those_below(name: str) -> Iterator[str]:
    yield name
    package = sys.modules.get(name)
    for _, module, _ in pkgutil.iter_modules(getattr(package, "__path__", ()), f"{name}."):
        yield module


def main(read: int, write: int) -> NoReturn:
    processes.adopt_orphans()
    line, parent = Line(read, write), os.getppid()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    code = 0
    try:
        forking.importing()
        prepare()
        forking.settle()
        _say(line, {"ready": os.getpid()})
        for asked in _orders(line, parent):
            pid = fork(asked)
            _say(line, {"started": pid, "folder": asked["folder"]})
    except BaseException as error:
        code = 1
        traceback.print_exc()
        with contextlib.suppress(OSError):
            _say(line, {"failed": f"{type(error).__name__}: {error}"})
    sys.stdout.flush()
    processes.end_all_below(os.getpid())
    os._exit(code)


def _orders(line: Line, parent: int) -> Iterator[Any]:
    while os.getppid() == parent and not line.over:
        if select.select([line.read_end], [], [], 1.0)[0]:
            yield from map(json.loads, line.heard())
        else:
            _reap()


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _say(line: Line, what: dict[str, Any]) -> None:
    line.say(json.dumps(what).encode())


def fork(asked: dict[str, Any]) -> int:
    """Fork a keeper with a server below it; gives the keeper's pid."""
    house = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        processes.adopt_orphans()
        folder = Path(asked["folder"])
        me = os.getpid()
        server = os.fork()
        if not server:
            _be_the_server(asked, folder, me)
        keeper.keep(server, folder, house)
    except BaseException:
        with open(Path(asked["folder"]) / "log", "a") as log:  # where its death is looked for
            traceback.print_exc(file=log)
    else:
        code = 0
    finally:
        os._exit(code)


def _be_the_server(asked: dict[str, Any], folder: Path, me: int) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        keeper.be_kept(me)
        keeper.become(folder / "log")
        faulthandler.enable()  # says where a rank hangs
        os.environ.update(asked["environment"])
        attestations = Path(asked["attestations"])
        os.environ[boot.ATTESTATIONS] = str(attestations)
        live.engine.recorder.leave_in(attestations)
        _put_in(asked, folder)
        adaptations.apply(asked["adaptations"])
        _fork_below()
        adaptations.launch(asked["words"])
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


def _put_in(asked: dict[str, Any], folder: Path) -> None:
    """Put the toggles in; what only an import can change is refused, and started afresh instead."""
    from harness import toggles
    from harness.errors import UnfixError

    folders = [Path(name) for name in asked["folders"]]
    try:
        for words, put in (("revert", toggles.reverted), ("enable", toggles.enabled)):
            if asked[words]:
                put(*asked[words], folders=folders).__enter__()
    except UnfixError as error:
        (folder / "refused").write_text(str(error))
        os._exit(REFUSED)


def _fork_below() -> None:
    """Have the server fork its workers, too: what it has imported, they need not."""
    import multiprocessing

    start = multiprocessing.set_start_method
    start("fork", force=True)
    multiprocessing.set_start_method = lambda method, force=False: None


if __name__ == "__main__":
    forking.with_room(lambda: main(int(sys.argv[1]), int(sys.argv[2])))
