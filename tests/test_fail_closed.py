"""A process with a requested toggle never runs without it: each possible way is tried."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from calling import copy_toy_release
from memory import write_toggle
from shell import ENABLE, PLAIN, REVERT, TOY, Shell

from harness.patching.child_environment import STARTUP_FOLDER


@pytest.fixture
def release(shell: Shell) -> Path:
    """A private copy of the toy release, first on the path."""
    folder = shell.tmp / "copied"
    copy_toy_release(folder / "sglang")
    shell.environment["PYTHONPATH"] = f"{STARTUP_FOLDER}{os.pathsep}{folder}"
    return folder / "sglang"


def test_a_swallowed_refusal_comes_again_with_the_next_import(shell: Shell) -> None:
    program = """
        try:
            import sglang
        except BaseException as error:
            print(type(error).__name__)
        from sglang import users
        print("served", users.use(3, 5))
    """
    done = shell.python(program, **{REVERT: "no-such"})
    assert (done.returncode, done.stdout) == (2, "SystemExit\n")


@pytest.mark.parametrize("close", ["sys.stderr.close()", "os.close(2)"])
def test_a_closed_stderr_does_not_lose_the_toggle(shell: Shell, close: str) -> None:
    program = f"import os, sys\n{close}\n{PLAIN}"
    assert shell.python(program, **{REVERT: "toy-plain"}).stdout == "6\n"


def test_a_toggle_file_that_cannot_be_read_stops_the_process(shell: Shell) -> None:
    folder = shell.tmp / "more"
    folder.mkdir()
    (folder / "dangling.yaml").symlink_to(shell.tmp / "nowhere")
    done = shell.python(PLAIN, **{REVERT: "27460", "UNFIX_TOGGLES": str(folder)})
    assert (done.returncode, done.stdout) == (3, "")
    assert "toggles cannot be applied" in done.stderr


FRONT = """
    import sys
    from importlib.machinery import PathFinder

    class Front:
        @staticmethod
        def find_spec(name, path=None, target=None):
            return PathFinder.find_spec(name, path) if {condition} else None

    import sglang
    sys.meta_path.insert(0, Front)
    from sglang import forms, users
    import sglang.srt
    print("served", users.use(3, 5))
"""


@pytest.mark.parametrize(
    ("condition", "output"), [("True", "served 30\n"), ("name == 'sglang.forms'", "")]
)
def test_an_import_hook_before_ours_is_noticed(shell: Shell, condition: str, output: str) -> None:
    done = shell.python(FRONT.format(condition=condition), **{REVERT: "toy-plain"})
    assert (done.returncode, done.stdout) == (3, output)
    assert "sglang.forms was loaded without its toggles by SourceFileLoader" in done.stderr


def test_a_package_that_came_before_its_toggles_is_noticed(shell: Shell) -> None:
    (shell.tmp / "sitecustomize.py").write_text(
        f"import sglang\nexec(open({str(STARTUP_FOLDER / 'sitecustomize.py')!r}).read(), "
        f"{{'__file__': {str(STARTUP_FOLDER / 'sitecustomize.py')!r}, '__name__': 'other'}})\n"
    )
    path = os.pathsep.join([str(shell.tmp), str(TOY)])
    done = shell.python(PLAIN, PYTHONPATH=path, **{REVERT: "toy-plain"})
    assert (done.returncode, done.stdout) == (3, "")
    assert "sglang was imported before its toggles could be applied" in done.stderr


def test_an_edited_toggle_is_not_served_from_a_stored_plan(shell: Shell) -> None:
    folder = shell.tmp / "more"
    answers = []
    for value in ("2", "4"):
        forms = ("doubled = topk * 2", f"doubled = {value}")
        file = write_toggle(folder, "toy-other", "sglang.forms:plain", *forms)
        os.utime(file, (1, 1))  # the same size, and the same time
        variables = {REVERT: "toy-other", "UNFIX_TOGGLES": str(folder)}
        answers.append(shell.python(PLAIN, **variables).stdout)
    assert answers == ["6\n", "12\n"]


def test_a_number_that_upstream_drops_is_unknown_again(shell: Shell, release: Path) -> None:
    assert shell.python(PLAIN, **{REVERT: "901"}).stdout == "30\n"
    registry = release / "srt" / "debug_utils" / "pr_fix_toggle.py"
    registry.write_text(registry.read_text().replace("901: _REVERT_901, ", ""))
    done = shell.python(PLAIN, **{REVERT: "901"})
    assert (done.returncode, done.stdout) == (2, "")


def test_a_release_that_changes_its_version_is_looked_at_again(shell: Shell, release: Path) -> None:
    assert shell.python(PLAIN, **{REVERT: "toy-plain"}).stdout == "6\n"
    (release / "version.py").write_text('__version__ = "0.1.0"')
    done = shell.python(PLAIN, **{REVERT: "toy-plain"})
    assert (done.returncode, done.stdout) == (2, "")
    assert "leaves out 0.1.0, where its fixed form is found" in done.stderr


def test_a_forked_child_that_can_leave_no_attestation_ends(shell: Shell) -> None:
    program = f"""
        import os, shutil
        from sglang import users
        users.use(3, 5)
        shutil.rmtree({str(shell.attestations)!r})
        open({str(shell.attestations)!r}, "w").close()
        child = os.fork()
        if child == 0:
            print("served", flush=True)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    done = shell.python(program, **{REVERT: "toy-plain"})
    assert done.stdout == "3\n"
    assert "a forked child cannot write its attestation" in done.stderr


CHILD = """
    import os, subprocess, sys
    from sglang import users
    environment = {name: value for name, value in os.environ.items() if name not in %r}
    environment.update(%r)
    code = "from sglang import users; print(users.use(3, 5))"
    subprocess.run([sys.executable, "-c", code], env=environment)
"""


@pytest.mark.parametrize(
    ("cleared", "added", "output"),
    [((REVERT, ENABLE), {}, "30\n"), ((), {REVERT: "toy-same-function"}, "1030\n")],
)
def test_a_childs_own_variables_decide(
    shell: Shell, cleared: tuple[str, ...], added: dict[str, str], output: str
) -> None:
    done = shell.python(CHILD % (cleared, added), **{REVERT: "toy-plain"})
    assert done.stdout == output


def test_a_folder_called_like_the_engine_is_not_taken_for_it(shell: Shell) -> None:
    (shell.tmp / "harness").mkdir()
    (shell.tmp / "harness" / "__init__.py").write_text("raise RuntimeError('not this one')")
    here = Path.cwd()
    os.chdir(shell.tmp)
    try:
        assert shell.python(PLAIN, **{REVERT: "toy-plain"}).stdout == "6\n"
    finally:
        os.chdir(here)


def test_a_patched_module_runs_as_main(shell: Shell, release: Path) -> None:
    forms = release / "forms.py"
    forms.write_text(forms.read_text() + "\n\nif __name__ == '__main__':\n    print(plain(3, 5))\n")
    program = "import runpy; runpy.run_module('sglang.forms', run_name='__main__')"
    assert shell.python(program, **{REVERT: "toy-plain"}).stdout == "6\n"
    [left] = shell.read_attestations()
    assert left.reach("toy-plain") == 1


def test_an_uncaught_error_shows_the_line_that_ran(shell: Shell) -> None:
    folder = shell.tmp / "more"
    forms = ("doubled = topk * 2", "doubled = rows['x']")
    write_toggle(folder, "toy-none", "sglang.forms:plain", *forms)
    variables = {REVERT: "toy-none", "UNFIX_TOGGLES": str(folder)}
    program = "from sglang import forms\nforms.plain({}, 1)\n"
    assert forms[1] in shell.python(program, **variables).stderr


def test_an_old_attestation_in_the_folder_is_not_this_runs(shell: Shell) -> None:
    run = ("--revert", "toy-plain", "--", sys.executable, "-c")
    assert "ran 1 time" in shell.unfix(*run, PLAIN).stderr
    (shell.attestations / "notes.json").write_text(json.dumps({"not": "ours"}))
    done = shell.unfix(*run, "import sglang.users")
    assert "toy-plain: in 1 process," in done.stderr
    assert "its code never ran" in done.stderr
