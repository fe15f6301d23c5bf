"""Runs from the call to the page, and runs ended before that: none leaves anything behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from calling import PATIENCE_SECONDS, is_alive, run_program, start_program, wait_until
from faked import (
    MODULE,
    TOY,
    Fakes,
    ended_at_exit,
    make_fake,
    make_server_arguments,
    read_pids,
    write_fake_lm_eval,
)

from harness.core import paths, processes
from harness.store.database import Store
from harness.store.eval.table import EvalTable

DRIVER = """
import functools, sys
from harness.cli import main
from harness.runs.eval import evaluation_request, lm_eval_scorer
module, python = sys.argv[1:3]
settings = evaluation_request.ServingSettings
evaluation_request.ServingSettings = functools.partial(settings, server_module=module)
if python:
    lm_eval_scorer.find_lm_eval_python = lambda: python
sys.exit(main.main(["eval", *sys.argv[3:]]))
"""


def unfix_eval(home: Path, python: str, *words: str) -> subprocess.Popen[str]:
    if not (home / ".releases").exists():
        (home / ".releases").symlink_to(paths.releases_folder())
    here = os.pathsep.join([str(paths.project_folder()), str(TOY)])
    environment = {**os.environ, "UNFIX_HOME": str(home), "PYTHONPATH": here}
    command = [sys.executable, "-c", DRIVER, MODULE, python, *words]
    return start_program(command, cwd=home, env=environment)


def words_for(home: Path, *, jobs: int = 1, **be: Any) -> list[str]:
    words = make_server_arguments(**be)
    base = {"name": "base", "model": "llama", "serve": words}
    one = {**base, "name": "one", "serve": make_server_arguments()}
    matrix: dict[str, Any] = {"name": "m", "device": "cpu", "release": "current"}
    matrix["tasks"] = ["recall"]
    one |= {"against": "base", "like": "base"}
    matrix["configurations"] = [base, {**base, "name": "other"}, one]
    (home / "m.yaml").write_text(json.dumps(matrix))
    return ["m.yaml", "--afresh", "-j", str(jobs)]


def test_a_run_that_ends_well_leaves_no_process(fakes: Fakes) -> None:
    assert fakes.shared.scorer  # which outlives this test
    before = set(processes.iterate_descendants(os.getpid()))
    assert fakes.run(make_fake("base"), make_fake("alike", "base"), items=25).status == "finished"
    assert set(processes.iterate_descendants(os.getpid())) <= before


@pytest.mark.parametrize(("number", "jobs"), [(signal.SIGINT, 1), (signal.SIGTERM, 2)])
def test_a_stopped_run_leaves_no_process(tmp_path: Path, number: signal.Signals, jobs: int) -> None:
    code = f"open(f'{tmp_path}/asked.{{os.getpid()}}', 'w').write(str(os.getpid()))"
    python = write_fake_lm_eval(tmp_path, code)
    pids = tmp_path / "pids"
    be = {"deaf": True, "brood": ["plain", "mute"], "pids": str(pids)}
    words = words_for(tmp_path, jobs=jobs, **be)
    with ended_at_exit(unfix_eval(tmp_path, str(python), *words)) as process:
        assert wait_until(lambda: len(list(tmp_path.glob("asked.*"))) == jobs)
        assert wait_until(lambda: len(read_pids(pids)) == 2 * jobs)
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    left = read_pids(pids)
    left += [int(one.read_text()) for one in tmp_path.glob("asked.*") if one.read_text()]
    assert not any(map(is_alive, left))
    assert not [
        folder for folder in Path("/proc").glob("[0-9]*") if str(tmp_path) in read_line(folder)
    ]
    [listed] = EvalTable(Store(tmp_path / ".unfix" / "runs.sqlite")).list_runs()
    assert (listed.status, listed.green) == ("stopped", False)


def read_line(folder: Path) -> str:
    try:
        return (folder / "cmdline").read_text()
    except OSError:
        return ""


def test_a_call_from_its_words_to_its_page(tmp_path: Path) -> None:
    words = words_for(tmp_path, wrong=[2, 1])
    words += ["--items", "50", "--json", "--record", "r.json"]
    with ended_at_exit(unfix_eval(tmp_path, "", *words)) as process:
        out, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1, errors
    evaluation = json.loads(out)
    assert evaluation["status"] == "finished"
    assert [one["verdict"] for one in evaluation["compared"]] == ["differs", "improved"]
    assert json.loads((tmp_path / "r.json").read_text())["green"] is False
    assert list((tmp_path / "reports" / "out").glob("eval-*.html"))
    [listed] = EvalTable(Store(tmp_path / ".unfix" / "runs.sqlite")).list_runs()
    assert listed.status == "finished"


def test_help_is_quick_and_listing_imports_nothing_of_this(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path))  # the runs of this checkout are another's
    script = (
        "import sys\nfrom harness.cli import main\n"
        "try: code = main.main(sys.argv[1:])\nexcept SystemExit as end: code = end.code\n"
        "heavy = ('harness.runs.eval', 'harness.runs.matrix', 'harness.workers.servers', "
        "'lm_eval', 'torch')\n"
        "print([one for one in sys.modules if one.startswith(heavy)], code, file=sys.stderr)"
    )
    for words in (["eval", "--help"], ["list"], ["report", "--list"]):
        command = [sys.executable, "-c", script, *words]
        done = run_program(command, cwd=paths.project_folder(), timeout=PATIENCE_SECONDS)
        assert done.stderr.endswith("[] 0\n"), done.stderr
        if words[0] == "eval":
            assert "--patience" in done.stdout
