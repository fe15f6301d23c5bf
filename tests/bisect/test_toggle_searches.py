"""Searches over the toggles of the toy release, with real commands under real toggles."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest
from bisecting import Bisect
from calling import TOY

WIDTH = "forms.Forms().width != 8"  # toy-class-body
LIMIT = "forms.LIMIT != 100"  # toy-constant
STATIC = "forms.Forms.static(5) != 4"  # toy-static


def fails_if(expression: str) -> str:
    return f"sys.exit(3 if {expression} else 0)"


def test_the_fix_that_removes_the_symptom(bisect: Bisect) -> None:
    bisect.names = ("toy-*",)
    culprit = "toy-constant"
    done = bisect.run("--json", command=bisect.script(fails_if(LIMIT)))
    found = json.loads(done.stdout)
    (part,) = found["toggle_searches"]
    assert part["minimal_sets"] == [[culprit]]
    (usual,) = re.findall(r"one culprit takes about (\d+) runs", done.stderr)
    assert 5 < int(usual) < len(part["toggles"])
    assert len(found["trials"]) <= int(usual)
    reached = [trial["reach_by_toggle"] or {} for trial in found["trials"]]
    assert all(one[culprit] for one in reached if culprit in one), "a constant that is imported ran"
    assert part["others_show_symptom"] is False
    assert "@@" in part["patches"][culprit]
    proof = [(t["toggles"], t["answer"]) for t in found["trials"] if t["why"] == "proof"]
    assert ([culprit], "fails") in proof
    assert ([], "passes") in proof
    assert any(len(names) > 15 and answer == "passes" for names, answer in proof)
    assert all("exec --release current" in trial["replay"] for trial in found["trials"])


def test_several_act_together(bisect: Bisect) -> None:
    command = bisect.script(fails_if(f"{WIDTH} and {LIMIT} and {STATIC}"))
    (found,) = bisect.sets("-j", "2", command=command)
    assert set(found) == {"toy-class-body", "toy-constant", "toy-static"}


def test_the_fixes_to_carry_back(bisect: Bisect) -> None:
    bisect.buggy(("width = 8", "width = 80"), ("return value - 1", "return value - 100"))
    states = bisect.search("--enable", command=bisect.script(fails_if(f"{WIDTH} or {STATIC}")))
    (part,) = states["toggle_searches"]
    assert part["direction"] == "enable"
    assert set(part["toggles"]) == {"toy-class-body", "toy-static"}
    assert [set(one) for one in part["minimal_sets"]] == [{"toy-class-body", "toy-static"}]
    assert part["left_out"]["toy-plain"] == "the fix is in already"


def test_held_toggles_are_in_every_run(bisect: Bisect) -> None:
    command = bisect.script(fails_if(f"{WIDTH} and {STATIC}"))
    found = bisect.search("--hold-reverted", "toy-static", command=command)
    assert found["toggle_searches"][0]["minimal_sets"] == [["toy-class-body"]]
    assert found["toggle_searches"][0]["left_out"]["toy-static"] == "held reverted"


PRINTS = "print('accuracy:', forms.Forms().width / 8, 'of', 1)"
OTHER_FAILURE = f"if {STATIC}: sys.exit('something else')\nif {WIDTH}: sys.exit('the symptom')"
CTRL_C = (
    "try:\n    os.kill(os.getpid(), signal.SIGINT); time.sleep(600)\n"
    f"except KeyboardInterrupt: {fails_if(WIDTH)}\nsys.exit(9)"
)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--metric", r"accuracy: ([\d.]+)", "--above", "2"), PRINTS),
        (("--symptom", "^the symptom"), OTHER_FAILURE),  # the search skips it
        ((), CTRL_C),
    ],
    ids=["metric", "symptom", "Ctrl-C"],
)
def test_a_number_a_symptom_or_an_exit_code_decides(
    bisect: Bisect, options: tuple[str, ...], text: str
) -> None:
    assert bisect.sets(*options, command=bisect.script(text)) == [["toy-class-body"]]


def test_a_death_by_signal_is_a_failure_with_its_name(bisect: Bisect) -> None:
    command = bisect.script(f"if {WIDTH}: os.kill(os.getpid(), signal.SIGSEGV)")
    found = bisect.search(command=command)
    assert found["toggle_searches"][0]["minimal_sets"] == [["toy-class-body"]]
    assert "killed by SIGSEGV" in {trial["how"] for trial in found["trials"]}


def test_a_hang_is_a_failure_and_ends_with_all_below_it(bisect: Bisect) -> None:
    own = str(3126 + os.getpid() / 2**24)  # another run of this test may be on the machine
    start = f"subprocess.Popen(['sleep', '{own}'], start_new_session=True)"
    command = bisect.script(f"if {WIDTH}:\n    {start}\n    time.sleep(3126)")
    bisect.names = ("toy-class-body", "toy-static")
    found = bisect.search("--limit", "8", "-j", "2", command=command)
    assert found["toggle_searches"][0]["minimal_sets"] == [["toy-class-body"]]
    assert any(trial["how"].startswith("hang") for trial in found["trials"])
    left = subprocess.run(["pgrep", "-f", f"sleep {own}"], capture_output=True, text=True)
    assert not left.stdout


SERVER = """
import http.server
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == '/plain' and {dies}:
            os._exit(7)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(forms.Forms().width).encode())
    def log_message(self, *arguments): pass
if {late}: time.sleep(600)
http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Answer).serve_forever()
"""
CLIENT = """
import urllib.request
seen = urllib.request.urlopen(f'http://127.0.0.1:{sys.argv[1]}/plain').read()
sys.exit(seen != b'8')
"""


@pytest.mark.parametrize(
    ("dies", "late", "how"),
    [
        ("False", "False", "exit code 1"),
        (WIDTH, "False", "the server ended while the command ran (exit code 7)"),
        ("False", WIDTH, "hang: the server was not ready within 8 s"),
    ],
)
def test_a_server_and_a_client(bisect: Bisect, dies: str, late: str, how: str) -> None:
    server = bisect.script(SERVER.format(dies=dies, late=late), "server.py")
    client = [*bisect.script(CLIENT, "client.py"), "{port}"]
    bisect.names = ("toy-class-body", "toy-static")
    serve = ("--serve", " ".join([*server, "{port}"]), "--ready", "http://127.0.0.1:{port}/")
    limit = ("--limit", "8") if how.startswith("hang") else ()
    found = bisect.search(*limit, *serve, command=client)
    assert found["toggle_searches"][0]["minimal_sets"] == [["toy-class-body"]]
    hows = {trial["how"] for trial in found["trials"] if trial["answer"] == "fails"}
    # A client may report first that its server is gone.
    gone = dies == WIDTH and all(each.startswith(("exit code 1", how)) for each in hows)
    assert hows
    assert how in hows or gone
    left = subprocess.run(["pgrep", "-f", server[-1]], capture_output=True, text=True)
    assert not left.stdout


@pytest.mark.parametrize(
    ("options", "text", "says"),
    [
        ((), "print('all wrong'); sys.exit(3)", ("fails already", "all wrong")),
        (("--enable",), "sys.exit(0)", ("passes already",)),
        ((), "sys.exit(125)", ("the outcome is unknown: exit code 125",)),
        (("--limit", "3"), "time.sleep(600)", ("did not end within 3 s",)),
        (("--metric", "x ([0-9.]+)", "--below", "1"), "print('x')", ("no line matches --metric",)),
        (("--metric", "x ([0-9.]+)", "--below", "1"), "sys.exit(1)", ("does not count",)),
    ],
)
def test_an_unsearchable_command_is_refused_first(
    bisect: Bisect, options: tuple[str, ...], text: str, says: tuple[str, ...]
) -> None:
    if "--enable" in options:
        bisect.buggy(("width = 8", "width = 80"))
    done = bisect.run(*options, command=bisect.script(text))
    assert done.returncode == 2
    for part in says:
        assert part in done.stderr
    assert bisect.runs == 1


@pytest.mark.parametrize(
    ("options", "command", "says"),
    [
        ((), ["true"], "no process that imports SGLang applied its toggles"),
        ((), ["nosuchcommand"], "there is no command 'nosuchcommand'"),
        ((), [], "needs a command"),
        (("--repeat", "0"), ["true"], "--repeat"),
        (("--confidence", "0.9"), ["true"], "--confidence goes with --repeat"),
        (("--below", "1"), ["true"], "--metric goes with"),
        (("--metric", "(", "--below", "1"), ["true"], "no regular expression"),
        (("--metric", "a", "--below", "1"), ["true"], "one group"),
        (("--serve", "true"), ["true"], "--ready"),
        (("--serve", "true", "--ready", "http://x/", "-j", "2"), ["true"], "{port}"),
        (("--serve", "true", "--ready", "localhost:1/"), ["true"], "begins with http"),
        (("nosuch-toggle",), ["true"], "nosuch-toggle"),
        (("--dry-run", "--symptom", "("), ["true"], "no regular expression"),
        (("--dry-run",), ["test_of_no_guard"], "no guard of that name"),
        (("-j", "0"), ["true"], "positive"),
        (
            ("--hold-applied", "toy-plain", "--hold-reverted", "toy-plain"),
            ["true"],
            "cannot be both",
        ),
    ],
)
def test_a_wrong_call_is_refused(
    bisect: Bisect, options: tuple[str, ...], command: list[str], says: str
) -> None:
    done = bisect.run(*options, command=command)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_a_search_among_no_toggles_is_told(bisect: Bisect, options: tuple[str, ...]) -> None:
    done = bisect.run("--enable", *options, command=bisect.script("sys.exit(1)"))
    assert done.returncode == 2
    assert "no toggle can be put into SGLang current (toy-class-body: the fix" in done.stderr
    assert bisect.runs == 0


def test_why_a_search_was_refused_is_kept(bisect: Bisect) -> None:
    refused = bisect.run(command=bisect.script("sys.exit('no such model')"))
    assert "exit code 1: no such model" in refused.stderr
    (listed,) = json.loads(bisect.report("--list", "--json").stdout)
    assert listed["status"] == "refused"
    assert "fails already" in listed["summary"]
    shown = bisect.report(listed["id"])
    assert shown.returncode == 1
    assert "no such model" in shown.stdout
    again = bisect.run("--replay", listed["id"])
    assert again.returncode == 2
    assert "was refused" in again.stderr


def test_a_dry_run_runs_nothing(bisect: Bisect) -> None:
    done = bisect.run("--dry-run", command=bisect.script("sys.exit(1)"))
    assert done.returncode == 0, done.stderr
    assert "toy-class-body" in done.stdout
    assert "never together: toy-overlap and toy-plain" in done.stdout
    assert "9 on average, 10 at most" in done.stdout
    assert bisect.runs == 0
    assert not (bisect.root / ".unfix").exists()


def test_a_search_is_shown_and_written(bisect: Bisect) -> None:
    markdown, page = bisect.root / "out" / "s.md", bisect.root / "out" / "s.html"
    command = bisect.script(fails_if(WIDTH))
    done = bisect.run("--markdown", str(markdown), "--html", str(page), command=command)
    assert done.returncode == 0, done.stderr
    for text in (done.stdout, markdown.read_text(), page.read_text()):
        assert "toy-class-body" in text
        assert "width = 80" in text
        assert "exit code 3" in text
    assert "●" in done.stdout
    shown = bisect.report(done.stdout.split("unfix report ")[1].strip())
    assert shown.returncode == 0, shown.stderr
    assert "toy-class-body" in shown.stdout


def test_a_smaller_set_that_cannot_be_told_is_no_smallest_set(bisect: Bisect) -> None:
    text = f"a, b = {WIDTH}, {STATIC}\nsys.exit(3 if a and b else 125 if a or b else 0)"
    found = bisect.search(command=bisect.script(text))
    assert found["verdict"] == "cannot tell"
    assert "whether fewer would is unknown" in found["summary"]


def test_a_long_word_and_a_folder_are_words_like_others(bisect: Bisect) -> None:
    text = f"from sglang import forms; import sys; sys.exit(forms.Forms().width != 8) # {'x' * 300}"
    assert bisect.sets(command=["python", "-c", text, "/"]) == [["toy-class-body"]]


def test_another_sglang_than_was_asked_for_is_no_answer(bisect: Bisect) -> None:
    bisect.buggy()
    other = bisect.package / "sglang" / "version.py"
    other.write_text(other.read_text().replace("1.", "7."))
    shadow = f"env PYTHONPATH={bisect.package}{os.pathsep}$PYTHONPATH python"
    bisect.package = TOY
    bisect.names = ("toy-class-body",)
    command = bisect.script(fails_if(WIDTH))
    done = bisect.run(command=["sh", "-c", f"{shadow} {command[-1]}"])
    assert done.returncode in (1, 2)
    assert "but it ran SGLang" in done.stdout + done.stderr
