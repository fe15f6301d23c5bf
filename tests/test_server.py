"""A real SGLang server on this CPU, under toggles, from `unfix exec` to the attestations."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from calling import PATIENCE_SECONDS, run_program
from memory import write_toggle

from harness.core import paths
from harness.patching import attestation
from harness.releases import managed_releases
from harness.workers.servers import ports

RELEASE = "0.5.18"
MODEL = paths.project_folder() / "fixtures" / "models" / "trained" / "llama"
# The two fixes are in attention backends that a CPU server never loads, and their attestation
# shows that; the third toggle is in the scheduler, and has no visible effect.
REVERTED = ("27460", "24617", "scheduler-probe")


class Server:
    """`sglang.launch_server` under `unfix exec`, with its log."""

    def __init__(self, folder: Path, *toggles: str) -> None:
        [self.reservation] = ports.reserve_ports()
        self.port = self.reservation.port
        self.attestations = folder / "attestations"
        self.log = folder / "log"
        served = (
            f"--model-path {MODEL} --device cpu --attention-backend torch_native "
            "--disable-cuda-graph --disable-overlap-schedule --mem-fraction-static 0.5 "
            "--skip-server-warmup "
            f"--max-total-tokens 4096 --host 127.0.0.1 --port {self.port}"
        )
        command = [sys.executable, "-m", "harness", "exec", "--release", RELEASE, *toggles]
        command += ["--attestations", str(self.attestations), "--"]
        command += ["python", "-m", "sglang.launch_server", *served.split()]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "no_proxy": "127.0.0.1"}
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def ask(self, path: str, question: dict[str, object] | None = None) -> bytes:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=json.dumps(question).encode() if question else None,
            headers={"content-type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=PATIENCE_SECONDS) as answer:
            data: bytes = answer.read()
            return data

    def wait(self, seconds: float = PATIENCE_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                self.ask("/health")
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
            else:
                return
        pytest.fail(f"the server did not get ready:\n{self.log.read_text()[-3000:]}")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=PATIENCE_SECONDS)
        self.reservation.close()


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("toggles")
    forms = ("return self.finished_reason is not None", "return not self.finished_reason is None")
    target = "sglang.srt.managers.schedule_batch:Req.finished"
    write_toggle(folder, "scheduler-probe", target, *forms, ">=0.5.9")
    toggles = ["--toggles", str(folder), "--revert", ",".join(REVERTED)]
    server = Server(tmp_path_factory.mktemp("served"), *toggles)
    try:
        server.wait()
        yield server
    finally:
        server.stop()


def test_it_answers_a_completion(running_server: Server) -> None:
    question = {"model": "m", "prompt": "the capital of", "max_tokens": 8, "ignore_eos": True}
    answer = json.loads(running_server.ask("/v1/completions", question))
    assert answer["usage"]["completion_tokens"] == 8


def test_every_process_that_patched_left_an_attestation(running_server: Server) -> None:
    left = attestation.read_attestations(running_server.attestations)
    assert len(left) >= 3  # the launcher, the scheduler, the detokenizer
    for found in left:
        assert found.release == RELEASE
        assert found.toggles == dict.fromkeys(REVERTED, "revert")
    assert sum(a.reach("scheduler-probe") for a in left) >= 1
    assert sum(a.reach("27460") for a in left) == 0


def test_the_scheduler_says_in_the_log_what_it_reverted(running_server: Server) -> None:
    left = attestation.read_attestations(running_server.attestations)
    reached = [found for found in left if found.reach("scheduler-probe")]
    [scheduler] = reached
    log = running_server.log.read_text()
    for toggle in REVERTED:
        assert f"pid {scheduler.pid} runs SGLang {RELEASE} with REVERTED {toggle}" in log


@pytest.mark.parametrize(
    ("toggles", "message"),
    [
        (["--revert", "99999"], "no toggle is called '99999'"),
        (["--enable", "27460"], f"cannot enable 27460 on SGLang {RELEASE}: it is fixed there"),
    ],
)
def test_an_inapplicable_toggle_stops_the_server(
    tmp_path: Path, toggles: list[str], message: str
) -> None:
    server = Server(tmp_path, *toggles)
    assert server.process.wait(timeout=PATIENCE_SECONDS) == 2
    server.stop()
    assert message in server.log.read_text()


def test_a_stale_toggle_stops_the_server_itself(tmp_path: Path) -> None:
    """`exec` checks beforehand; the process itself checks its toggles again."""
    folder = tmp_path / "toggles"
    forms = ("return int(value, 16)", "return int(value, 8)")
    write_toggle(folder, "stale-one", "sglang.srt.environ:EnvInt.parse", *forms, ">=0.5")
    toggles = {"SGLANG_DEBUG_REVERT_PR": "stale-one", "UNFIX_TOGGLES": str(folder)}
    python = managed_releases.get_release(RELEASE).python
    command = [python, "-m", "sglang.launch_server", "--model-path", MODEL]
    done = run_program(command, env={**os.environ, **toggles}, timeout=PATIENCE_SECONDS)
    assert done.returncode == 2
    assert "stale there: sglang.srt.environ:EnvInt.parse has neither form" in done.stderr
    assert "return int(value)" in done.stderr
