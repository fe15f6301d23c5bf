"""Toggles through the environment: in the process, in its children, and nowhere without them."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest
from calling import PATIENCE_SECONDS, start_program
from memory import write_toggle
from shell import ENABLE, PLAIN, REVERT, TOY, Shell

from harness.core import paths
from harness.patching.child_environment import STARTUP_FOLDER


def test_a_reverted_fix_is_out_and_said_once(shell: Shell) -> None:
    done = shell.python(PLAIN, **{REVERT: "toy-plain"})
    assert done.stdout == "6\n"
    assert done.stderr.count("runs SGLang 1.0.0 with REVERTED toy-plain") == 1


def test_several_ids_and_several_forms_at_once(shell: Shell) -> None:
    program = """
        from sglang import forms, users
        print(users.use(3, 5), users.limits(), forms.Forms.width, forms.Settings("a").pages)
        print(forms.with_default(1), forms.Forms().size(), forms.concealed(1))
    """
    names = "toy-plain,toy-constant, toy-class-body,toy-dataclass,toy-default,toy-super"
    done = shell.python(program, **{REVERT: f"{names},toy-concealed"})
    assert done.stdout.splitlines() == ["6 (10, 10) 80 32", "142 101 ('hidden', ('hidden', 101))"]


def test_a_process_without_toggles_or_the_package_is_left_alone(shell: Shell) -> None:
    assert shell.python(PLAIN, **{REVERT: "0"}).stdout == "30\n"
    assert shell.python(PLAIN, **{REVERT: " ,"}).stdout == "30\n"
    done = shell.python("print('hello')", **{REVERT: "no-such-toggle"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")
    assert not shell.attestations.exists()


def test_the_patched_line_is_in_tracebacks_and_in_inspect(shell: Shell) -> None:
    program = """
        import inspect, traceback
        from sglang import forms
        print("doubled = 2" in inspect.getsource(forms.plain))
        print("doubled = 2" in inspect.getsource(forms))
        try:
            forms.plain({}, 1)
        except TypeError:
            print(traceback.format_exc())
    """
    done = shell.python(program, **{REVERT: "toy-plain"})
    assert done.stdout.startswith("True\nTrue\n")
    assert "return rows * doubled" in done.stdout


def test_no_bytecode_of_a_patched_module_is_left_or_used(shell: Shell) -> None:
    assert shell.python(PLAIN).stdout == "30\n"  # leaves the original bytecode
    assert shell.python(PLAIN, **{REVERT: "toy-plain"}).stdout == "6\n"
    assert shell.python(PLAIN).stdout == "30\n"


CHILDREN = """
    import multiprocessing, os, subprocess, sys

    def work(queue):
        from sglang import users
        queue.put(users.use(3, 5))

    if __name__ == "__main__":
        from sglang import users
        print(users.use(3, 5))
        for method in ("spawn", "fork"):
            context = multiprocessing.get_context(method)
            queue = context.Queue()
            child = context.Process(target=work, args=(queue,))
            child.start()
            print(method, queue.get(timeout=300))
            child.join()
        code = "from sglang import users; print('subprocess', users.use(3, 5))"
        sys.stdout.flush()
        subprocess.run([sys.executable, "-c", code], check=True)
"""


def test_it_holds_in_spawned_forked_and_started_children(shell: Shell) -> None:
    done = shell.python(CHILDREN, **{REVERT: "toy-plain"})
    assert done.stdout.split() == ["6", "spawn", "6", "fork", "6", "subprocess", "6"], done.stderr
    left = shell.read_attestations()
    assert len(left) == 4
    assert [a.toggles for a in left] == [{"toy-plain": "revert"}] * 4
    assert [a.reach("toy-plain") for a in left] == [1, 1, 1, 1]
    parent = left[0].pid
    assert sorted(str(a.forked_from) for a in left) == sorted(["None"] * 3 + [str(parent)])


def test_an_attestation_says_what_was_applied_and_how_often_it_ran(shell: Shell) -> None:
    program = "from sglang import users\nfor _ in range(1000): users.use(3, 5)\n"
    shell.python(program, **{REVERT: "toy-plain,toy-method"})
    [found] = shell.read_attestations()
    assert found.release == "1.0.0"
    assert found.modules == ["sglang.forms"]
    assert found.command[-1].endswith("program.py")
    assert found.reach("toy-plain") == 1000
    assert found.reach("toy-method") == 0
    kinds = {slot.target: kind for slot, kind in found.kinds.items()}
    assert kinds == dict.fromkeys(("sglang.forms:plain", "sglang.forms:Forms.method"), "runs")


def test_counts_outlast_a_kill(shell: Shell) -> None:
    program = """
        import os, signal
        from sglang import users
        for _ in range(7): users.use(3, 5)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert shell.python(program, **{REVERT: "toy-plain"}).returncode == -signal.SIGKILL
    assert [a.reach("toy-plain") for a in shell.read_attestations()] == [7]


def test_enable_needs_the_bug_to_be_there(shell: Shell) -> None:
    done = shell.python(PLAIN, **{ENABLE: "toy-plain"})
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot enable toy-plain on SGLang 1.0.0: it is fixed there" in done.stderr


def test_enable_carries_a_fix_to_where_it_is_not(shell: Shell) -> None:
    buggy = "return rows * doubled"
    more = shell.tmp / "more"
    write_toggle(more, "toy-other", "sglang.forms:plain", f"{buggy} + 500", buggy)
    done = shell.python(PLAIN, **{ENABLE: "toy-other", "UNFIX_TOGGLES": str(more)})
    assert done.stdout == "530\n"
    assert "with ENABLED toy-other" in done.stderr


REFUSED = {
    "unknown id": ("no-such", "no toggle is called 'no-such'"),
    "unknown number": ("77777", "no toggle is called '77777'"),
    "two on one code": ("toy-plain,toy-overlap", "change the same code, sglang.forms line"),
    "absent": ("toy-absent", "cannot revert toy-absent on SGLang 1.0.0: it is absent there"),
    "stale": ("toy-stale", "it is stale there: sglang.forms:plain has neither form"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_inapplicable_toggle_ends_the_process_at_once(shell: Shell, case: str) -> None:
    more = shell.tmp / "more"
    forms = ("doubled = topk * 4", "doubled = topk * 8")
    for name, releases in (("toy-stale", ">=1"), ("toy-absent", ">=2")):
        write_toggle(more, name, "sglang.forms:plain", *forms, releases)
    ids, message = REFUSED[case]
    folders = os.pathsep.join([str(TOY / "toggles"), str(more)])
    done = shell.python(PLAIN, **{REVERT: ids, "UNFIX_TOGGLES": folders})
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not shell.attestations.exists()


IN_THREAD = "import threading\nthread = threading.Thread(target=__import__, args=('sglang',))\n"
SWALLOWED = "try:\n    import sglang\nexcept Exception:\n    print('served')\n"


@pytest.mark.parametrize(
    "program", [f"{IN_THREAD}thread.start(); thread.join()\nprint('served')\n", SWALLOWED]
)
def test_no_program_outlives_the_refusal(shell: Shell, program: str) -> None:
    done = shell.python(program, **{REVERT: "no-such"})
    assert (done.returncode, done.stdout) == (2, "")


def test_no_attestation_no_toggle(shell: Shell) -> None:
    (shell.tmp / "file").write_text("")
    done = shell.python(PLAIN, **{REVERT: "toy-plain", "UNFIX_ATTESTATIONS": f"{shell.tmp}/file"})
    assert done.returncode == 3
    assert "no attestation can be written" in done.stderr
    assert done.stdout == ""


UPSTREAM = """
    import os
    from sglang import users
    from sglang.srt.debug_utils.pr_fix_toggle import asked_for
    print(users.use(3, 5), asked_for(), os.environ.get("SGLANG_DEBUG_REVERT_PR"))
"""


@pytest.mark.parametrize(
    ("reverted", "output"),
    [("901", "30 901 901"), ("toy-plain,901", "6 901 901"), ("toy-plain,toy-method", "6 0 0")],
)
def test_upstream_gets_its_own_number_alone(shell: Shell, reverted: str, output: str) -> None:
    assert shell.python(UPSTREAM, **{REVERT: reverted}).stdout == f"{output}\n"


def test_upstream_takes_one_number_only(shell: Shell) -> None:
    done = shell.python(UPSTREAM, **{REVERT: "901,902"})
    assert done.returncode == 2
    assert "reverts one number at a time, not 901, 902" in done.stderr


def test_a_plan_is_made_once_and_again_when_a_toggle_changes(shell: Shell) -> None:
    shell.environment["UNFIX_HOME"] = str(shell.tmp)
    for _ in range(2):
        assert shell.python(PLAIN, **{REVERT: "toy-plain"}).stdout == "6\n"
    plans = shell.tmp / ".unfix" / "plans"
    [plan_file] = plans.iterdir()
    answer = json.loads(plan_file.read_text())
    answer["plan"]["release"] = "from the kept plan"
    plan_file.write_text(json.dumps(answer))
    assert "from the kept plan" in shell.python(PLAIN, **{REVERT: "toy-plain"}).stderr
    plan_file.write_text("{cut sho")
    assert shell.python(PLAIN, **{REVERT: "toy-plain"}).stdout == "6\n"


def test_a_source_that_changes_under_a_plan_stops_the_process(shell: Shell) -> None:
    copy = shell.tmp / "copy" / "sglang"
    copy.mkdir(parents=True)
    for name in ("__init__.py", "version.py", "forms.py", "users.py"):
        (copy / name).write_text((TOY / "sglang" / name).read_text())
    program = f"""
        import sys
        sys.path.insert(0, {str(copy.parent)!r})
        import sglang
        path = {str(copy / "forms.py")!r}
        text = open(path).read()
        open(path, "w").write(text + "# edited")
        from sglang import users
        print(users.use(3, 5))
    """
    done = shell.python(program, **{REVERT: "toy-plain"})
    assert done.returncode == 3
    assert "changed while toggles were being applied" in done.stderr
    assert done.stdout == ""


def test_another_sitecustomize_still_runs(shell: Shell) -> None:
    (shell.tmp / "sitecustomize.py").write_text("print('theirs')")
    path = os.pathsep.join([str(STARTUP_FOLDER), str(shell.tmp), str(TOY)])
    assert shell.python(PLAIN, PYTHONPATH=path, **{REVERT: "toy-plain"}).stdout == "theirs\n6\n"
    assert shell.python(PLAIN, PYTHONPATH=path).stdout == "theirs\n30\n"


def test_exec_runs_a_command_under_toggles_and_reports(shell: Shell) -> None:
    code = "from sglang import users; print(users.use(3, 5)); raise SystemExit(7)"
    done = shell.unfix("--revert", "toy-plain,toy-method", "--", sys.executable, "-c", code)
    assert (done.returncode, done.stdout) == (7, "6\n")
    loaded = "in 1 process, 1 of which loaded patched code; its code"
    assert f"toy-plain: {loaded} ran 1 time" in done.stderr
    assert f"toy-method: {loaded} never ran" in done.stderr


@pytest.mark.parametrize(
    ("option", "toggles", "message"),
    [
        ("--revert", "toy-plian", "near it: toy-plain"),
        ("--revert", "toy-plain,toy-overlap", "change the same code"),
        ("--enable", "toy-plain", "it is fixed there"),
    ],
)
def test_exec_refuses_first(shell: Shell, option: str, toggles: str, message: str) -> None:
    marker = shell.tmp / "started"
    code = f"open({str(marker)!r}, 'w')"
    command = ("--", sys.executable, "-c", code)
    done = shell.unfix("--release", "current", option, toggles, *command)
    assert done.returncode == 2
    assert message in done.stderr
    assert not marker.exists()


def test_exec_without_a_command_says_how_it_is_called(shell: Shell) -> None:
    done = shell.unfix("--revert", "toy-plain")
    assert done.returncode == 2
    assert "exec needs a command" in done.stderr
    done = shell.unfix("--", "no-such-command")
    assert (done.returncode, "there is no command" in done.stderr) == (2, True)


def test_exec_says_when_nothing_was_applied(shell: Shell) -> None:
    done = shell.unfix("--revert", "toy-plain", "--", sys.executable, "-c", "pass")
    assert done.returncode == 3
    assert "no process applied a toggle: none imported SGLang" in done.stderr
    code = "from sglang import users; print(users.use(3, 5))"
    done = shell.unfix("--revert", "toy-plain", "--", sys.executable, "-E", "-c", "pass")
    assert done.returncode == 3
    done = shell.unfix("--revert", "", "--", sys.executable, "-c", code)
    assert (done.returncode, done.stdout) == (2, "")


def test_exec_passes_signals_on(shell: Shell) -> None:
    code = "import signal, time; signal.signal(15, lambda *a: exit(9)); print('up', flush=True); "
    command = [sys.executable, "-m", "harness", "exec", "--", sys.executable, "-c"]
    search_path = f"{TOY}{os.pathsep}{paths.HARNESS_FOLDER.parent}"
    environment = {**shell.environment, "PYTHONPATH": search_path}
    with start_program([*command, f"{code}time.sleep(600)"], env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_SECONDS) == 9


def test_exec_json_holds_every_attestation(shell: Shell) -> None:
    code = "from sglang import users; users.use(3, 5)"
    done = shell.unfix("--json", "--revert", "toy-plain", "--", sys.executable, "-c", code)
    [found] = json.loads(done.stdout)
    assert found["toggles"] == {"toy-plain": "revert"}
    assert found["reach"] == {"toy-plain": 1}
    assert found["modules"] == ["sglang.forms"]
