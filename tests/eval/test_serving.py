"""A server from start to end: every failure is reported, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from calling import PATIENCE_SECONDS, is_alive, start_program, wait_until
from faked import MODULE, PYTHON, FakeServers, ended_at_exit, read_pids
from fixture_types import Output

from harness.cli import main
from harness.core import paths
from harness.core.errors import NotReadyError, UnfixError
from harness.runs.eval import model_folders
from harness.workers import command_supervisor
from harness.workers.servers import orphans, ports
from harness.workers.servers.server import ServerFailed, ServerSetup, SglangServer


@pytest.mark.parametrize(
    ("be", "line"),
    [({"never": True}, "loading the weights, 3 of 90"), ({"health_hangs": True}, "fake: on port")],
)
def test_a_server_that_is_never_ready_is_given_up(
    serve: FakeServers, be: dict[str, Any], line: str
) -> None:
    server = serve(ready=False, **be)
    assert wait_until(lambda: server.log.exists() and line in server.log.read_text())
    with pytest.raises(ServerFailed, match=f"not ready after 1 s: {line}"):
        server.wait_until_ready(1.0)
    assert not server.has_exited
    server.stop()
    assert server.has_exited


@pytest.mark.parametrize(
    ("be", "why"),
    [
        ({}, "RuntimeError: no more (exit code 1)"),
        ({"last": "bye", "code": 3}, "bye (exit code 3)"),
        ({"last": "", "code": -11}, r"fake: on port"),
        ({"last": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9 GiB\n"
         "Traceback (most recent call last):\nEOFError: the scheduler is gone", "code": -9},
         "out of memory: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9 GiB"),
        ({"last": "terminate called after throwing an instance of 'std::bad_alloc'", "code": -6},
         "out of memory: terminate called"),
        ({"last": "RuntimeError: can't allocate memory", "code": 1}, "out of memory: RuntimeError"),
    ],
)  # fmt: skip
def test_a_server_that_dies_early_says_why(
    serve: FakeServers, be: dict[str, Any], why: str
) -> None:
    server = serve(stillborn=True, ready=False, **be)
    with pytest.raises(ServerFailed) as failed:
        server.wait_until_ready(PATIENCE_SECONDS)
    assert "ended before it was ready" in str(failed.value)
    assert why in str(failed.value)
    code = be.get("code")
    if isinstance(code, int) and code < 0:
        assert signal.Signals(-code).name in str(failed.value)


def test_a_program_that_cannot_be_started(serve: FakeServers) -> None:
    setup = ServerSetup(Path("/nowhere/python"), (), module=MODULE)
    server = SglangServer(setup, serve.root / "none")
    serve.servers.append(server)
    with pytest.raises(ServerFailed, match=r"No such file or directory.*\(exit code 127\)"):
        server.wait_until_ready(PATIENCE_SECONDS)


def test_a_model_that_is_not_there(capsys: Output) -> None:
    with pytest.raises(
        NotReadyError, match=r"no model is called lama: there are .*llama.*or give a fol"
    ):
        model_folders.find_model_folder("lama")
    assert main.main(["eval", "--device", "cpu", "--model", "lama"]) == 3
    assert "no model is called lama: there are" in capsys.readouterr().err


def test_a_port_that_is_in_use_is_not_given() -> None:
    [first] = ports.reserve_ports()
    port = first.port
    first.close()
    [again] = ports.reserve_ports()
    assert again.port == port  # so this one would be returned
    again.close()
    for reuse in (0, 1):
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            taken.bind(("127.0.0.1", port))
            [other] = ports.reserve_ports()
            assert other.port != port
            other.close()


@pytest.mark.parametrize("word", ["--port", "--port=30000", "--host=0.0.0.0", "--nccl-port"])
def test_a_port_of_ones_own_is_refused(tmp_path: Path, word: str) -> None:
    [before] = ports.reserve_ports()
    before.close()
    with pytest.raises(UnfixError, match="cannot be set: each server gets a free port"):
        SglangServer(ServerSetup(PYTHON, (word, "1"), module=MODULE), tmp_path / "server")
    [after] = ports.reserve_ports()
    after.close()
    assert after.port == before.port  # nothing is locked for a start that never happened


def test_servers_of_one_machine_have_ports_of_their_own(serve: FakeServers) -> None:
    servers = [serve(ready=False) for _ in range(3)]
    requests = [json.loads((server.folder / "request.json").read_text()) for server in servers]
    commands = [request["command"] for request in requests]
    inner = [command[command.index("--nccl-port") + 1] for command in commands]
    outer = [str(server.port) for server in servers]
    assert len({*inner, *outer}) == 6
    script = "from harness.workers.servers import ports\nheld = ports.reserve_ports(12)\n"
    script += "print(*[one.port for one in held], flush=True)\ninput()"
    command = [sys.executable, "-c", f"import os\nos.getpid = lambda: {os.getpid()}\n{script}"]
    folder = paths.project_folder()
    others = [start_program(command, stdin=subprocess.PIPE, cwd=folder) for _ in "ab"]
    other_ports = []
    for other in others:
        assert other.stdout is not None
        other_ports += other.stdout.readline().split()
    for other in others:
        other.communicate("\n")
    assert len(other_ports) == 24
    assert len({*other_ports, *inner, *outer}) == 30
    for server in servers:
        server.wait_until_ready(PATIENCE_SECONDS)


def serve_with_daemons(serve: FakeServers, **be: Any) -> tuple[SglangServer, list[int]]:
    """A server with two daemons below it; one has closed every handle that identifies it."""
    pids = serve.root / "pids"
    server = serve(brood=["plain", "mute"], pids=str(pids), **be)
    assert wait_until(lambda: len(read_pids(pids)) == 2)
    found = read_pids(pids)
    assert all(map(is_alive, found))
    return server, found


def test_nothing_is_left_of_a_server_that_is_stopped(serve: FakeServers) -> None:
    server, daemons = serve_with_daemons(serve, deaf=True)
    server.stop()
    assert not any(map(is_alive, daemons))
    record = command_supervisor.read_exit(server.folder)
    assert record is not None
    assert record.leftover_count >= 2
    with pytest.raises(OSError, match="refused"):
        server.send_request("/health", seconds=2)
    server.stop()  # a second end does nothing


def test_nothing_is_left_when_the_supervisor_was_killed(serve: FakeServers) -> None:
    server, daemons = serve_with_daemons(serve, deaf=True)
    os.kill(server._pid, signal.SIGKILL)
    assert wait_until(lambda: server.has_exited)
    assert "its supervisor was killed" in server.describe_exit()
    server.stop()
    assert not any(map(is_alive, daemons))
    assert not list(orphans.find_orphans(server._mark, server.log))


def find_child(server: SglangServer) -> int:
    """Return the process below the supervisor."""
    children = Path(f"/proc/{server._pid}/task/{server._pid}/children").read_text()
    [pid] = map(int, children.split())
    return pid


def test_a_server_ends_with_its_supervisor_and_not_the_other_way_round(serve: FakeServers) -> None:
    server = serve(deaf=True)
    pid = find_child(server)
    os.kill(server._pid, signal.SIGKILL)
    assert wait_until(lambda: not is_alive(pid))
    server = serve()
    os.killpg(os.getpgid(find_child(server)), signal.SIGKILL)  # a process group of its own
    assert wait_until(lambda: server.has_exited)
    assert server.describe_exit().endswith("(SIGKILL)")


def test_a_process_that_reads_the_log_is_no_orphan(serve: FakeServers) -> None:
    server = serve()
    with subprocess.Popen(["tail", "-f", str(server.log)], stdout=subprocess.DEVNULL) as reader:
        try:
            handles = Path(f"/proc/{reader.pid}/fd")
            wanted = str(server.log)
            assert wait_until(lambda: wanted in map(os.path.realpath, handles.iterdir()))
            found = list(orphans.find_orphans(server._mark, server.log))
            assert found
            assert reader.pid not in found
        finally:
            reader.kill()


DRIVER = """
import os, sys, time
from pathlib import Path
from faked import MODULE, PYTHON
from harness.workers.servers.server import ServerSetup, SglangServer
server = SglangServer(ServerSetup(PYTHON, ("--be", sys.argv[2]), module=MODULE), Path(sys.argv[1]))
if sys.argv[3] == "at-once":
    print(server._pid, flush=True)
server.wait_until_ready(300)
print(server._pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("when", ["ready", "at-once"])
def test_nothing_is_left_when_the_driver_was_killed(tmp_path: Path, when: str) -> None:
    pids = tmp_path / "pids"
    be = json.dumps({"deaf": True, "brood": ["plain", "mute"], "pids": str(pids)})
    folders = (Path(__file__).parent, Path(__file__).parents[1], paths.project_folder())
    here = os.pathsep.join(map(str, folders))
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "server"), be, when]
    environment = {**os.environ, "PYTHONPATH": here}
    process = start_program(command, env=environment, cwd=paths.project_folder())
    with ended_at_exit(process) as driver:
        assert driver.stdout is not None
        supervisor = int(driver.stdout.readline())
        if when == "ready":
            assert wait_until(lambda: len(read_pids(pids)) == 2)
        driver.kill()
        driver.wait()
    assert wait_until(lambda: not is_alive(supervisor))
    assert not any(map(is_alive, read_pids(pids)))
