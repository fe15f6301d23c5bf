"""States: a toggle's state on a release is read from its source, with a reason if it is stale."""

from __future__ import annotations

import pytest
from memory import Memory, make_edit_toggle, make_toggle, make_variant

from harness.fixes.matching.toggle_status import ToggleState as State
from harness.fixes.matching.toggle_status import ToggleStatus, find_toggle_status
from harness.fixes.registry.schema import Toggle, ToggleEdit, ToggleVariant

FIXED = "def f():\n    width = rows * topk\n    return width\n"
BUGGY = "def f():\n    width = rows\n    return width\n"
PAIR = ("width = rows * topk", "width = rows")
PLAIN = make_edit_toggle(*PAIR)
TWICE = "def f():\n    {0}\n    if a:\n        {0}\n"
ARM = "    def f():\n        width = rows\n"


def find_state(toggle: Toggle, text: str, version: str | None = "0.5.9") -> State:
    return find_toggle_status(toggle, Memory({"m": text}, version)).state


def find_stale(
    toggle: Toggle, modules: dict[str, str], version: str | None = "0.5.9"
) -> ToggleStatus:
    finding = find_toggle_status(toggle, Memory(modules, version))
    assert finding.state is State.STALE
    assert finding.problem
    assert finding.sites == ()
    return finding


def test_a_status_has_the_state_and_its_place() -> None:
    assert find_state(PLAIN, BUGGY) is State.BUGGY
    (site,) = find_toggle_status(PLAIN, Memory({"m": FIXED})).sites
    assert FIXED[site.match.start : site.match.end] == "width = rows * topk"
    assert (str(site.target), site.state) == ("m:f", State.FIXED)


LATER = ("new(rows, topk)", "new(rows)")
FIRST = make_variant((PAIR,), releases=">=0.5.9,<0.5.13")
RANGED = make_toggle(FIRST, make_variant((LATER,), releases=">=0.5.13,<0.5.16"))


@pytest.mark.parametrize("version", ["0.5.8", "0.5.16", "0.5.13rc1"])
def test_outside_of_every_range_code_in_neither_form_is_absent(version: str) -> None:
    assert find_state(RANGED, "def f():\n    pass\n", version) is State.ABSENT
    assert find_toggle_status(RANGED, Memory({}, version)).state is State.ABSENT


@pytest.mark.parametrize(
    ("version", "text", "wanted"),
    [
        ("0.5.9", FIXED, State.FIXED),
        ("0.5.12.post1", BUGGY, State.BUGGY),
        ("0.5.13", "def f(): new(rows, topk)\n", State.FIXED),
        ("0.5.15.dev7+g1a2b3c4", "def f(): new(rows)\n", State.BUGGY),
        ("0.5.12", "def f(): new(rows)\n", State.STALE),
    ],
)
def test_the_version_selects_the_variant(version: str, text: str, wanted: State) -> None:
    assert find_state(RANGED, text, version) is wanted


@pytest.mark.parametrize(("text", "form"), [(FIXED, "fixed"), (BUGGY, "buggy")])
def test_a_form_found_outside_of_its_range_is_stale(text: str, form: str) -> None:
    finding = find_stale(RANGED, {"m": text}, "0.5.16")
    leaves_out = "the range '>=0.5.9,<0.5.13' leaves out 0.5.16, where its"
    assert finding.problem == f"{leaves_out} {form} form is found"


def test_a_module_that_is_gone_is_stale_and_shows_where_its_code_went() -> None:
    old = "sglang.srt.layers.attention.nsa.nsa_indexer"
    new = "sglang.srt.layers.attention.dsa.dsa_indexer"
    finding = find_stale(
        make_edit_toggle(*PAIR, target=f"{old}:f"), {new: FIXED, "other": "def g(): pass\n"}
    )
    assert finding.problem == f"there is no module {old}"
    assert finding.nearest == f"may have moved to: {new}:f"
    whole = make_edit_toggle("LIMIT = 10", "LIMIT = 11", target="sglang.srt.nsa_backend")
    finding = find_stale(whole, {"sglang.srt.dsa_backend": "LIMIT = 10\n", "other": ""})
    assert finding.nearest == "may have moved to: sglang.srt.dsa_backend"


def test_a_definition_that_is_gone_is_stale_and_shows_its_new_name() -> None:
    toggle = make_edit_toggle(*PAIR, target="m:Backend.init_row")
    text = "class Backend:\n    def init_rows(self):\n        width = rows * topk\n"
    moved = "class Backend:\n    def init_row(self):\n        width = rows * topk\n"
    finding = find_stale(toggle, {"m": text, "elsewhere": moved, "uses": "Backend().init_row()\n"})
    assert finding.problem == "m defines no Backend.init_row"
    first, *_, last = finding.nearest.splitlines()
    assert first == "near it: m:Backend.init_rows"
    assert last == "may have moved to: elsewhere:Backend.init_row"


def test_code_in_neither_form_is_stale_and_shows_what_changed() -> None:
    text = "def f():\n    first()\n    width = rows * self.topk + 1\n    return width\n"
    finding = find_stale(PLAIN, {"m": text})
    assert finding.problem == "m:f has neither form"
    assert finding.nearest.splitlines() == [
        *("--- the fixed form", "+++ m.py:3", "@@ -1 +1 @@"),
        *("-width = rows * topk", "+width = rows * self.topk + 1"),
    ]
    nearer = find_stale(PLAIN, {"m": "def f():\n    width = row\n"})
    assert nearer.nearest.splitlines()[0] == "--- the buggy form"


def test_a_form_of_several_lines_is_shown_beside_as_many_lines() -> None:
    names = "abcde"
    form = [f"{name} = make({name})" for name in names]
    code = "".join(f"    {name} = make({name}{', c' * (name == 'c')})\n" for name in names)
    toggle = make_edit_toggle("\n".join(form), "\n".join(form[1:-1]))
    finding = find_stale(toggle, {"m": f"def f():\n    start()\n{code}    end()\n"})
    assert finding.nearest.splitlines()[1:] == [
        *("+++ m.py:3", "@@ -1,5 +1,5 @@", " a = make(a)", " b = make(b)"),
        *("-c = make(c)", "+c = make(c, c)", " d = make(d)", " e = make(e)"),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def f():\n    width = rows * topk\n    width = rows\n", "both forms"),
        (TWICE.format(PAIR[0]), "the fixed form 2 times, not once"),
        (TWICE.format(PAIR[1]), "the buggy form 2 times, not once"),
        # Both arms of a conditional definition.
        (f"if a:\n{ARM}else:\n{ARM}", "the buggy form 2 times, not once"),
    ],
)  # fmt: skip
def test_more_than_one_form_is_stale(text: str, problem: str) -> None:
    assert find_stale(PLAIN, {"m": text}).problem == f"m:f has {problem}"


def test_a_form_outside_of_its_target_does_not_count() -> None:
    assert find_state(PLAIN, FIXED + "def g():\n    width = rows\n") is State.FIXED
    assert find_stale(PLAIN, {"m": "def f():\n    pass\n" + FIXED.replace("f()", "g()")})


SEVERAL = make_toggle(make_variant((PAIR, ("use(width, topk)", "use(width)"))))


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ("rows * topk", "width, topk", State.FIXED),
        ("rows", "width", State.BUGGY),
        ("rows * topk", "width", State.STALE),
        ("rows", "width, topk", State.STALE),
        ("rows", "width, row", State.STALE),
    ],
)
def test_several_edits_agree_or_are_stale(first: str, second: str, wanted: State) -> None:
    text = f"def f():\n    width = {first}\n    use({second})\n"
    finding = find_toggle_status(SEVERAL, Memory({"m": text}))
    assert finding.state is wanted
    assert len(finding.sites) == (0 if wanted is State.STALE else 2)


def test_edits_of_one_toggle_may_be_in_several_modules() -> None:
    one, other = ToggleEdit(*PAIR), ToggleEdit("use(width, topk)", "use(width)", "n:K.g")
    toggle = make_toggle(ToggleVariant(">=0", (one, other), "m:f"))
    text = "class K:\n    def g(self):\n        use(width{})\n"
    fixed = Memory({"m": FIXED, "n": text.format(", topk")})
    assert find_toggle_status(toggle, fixed).state is State.FIXED
    buggy = Memory({"m": BUGGY, "n": text.format("")})
    assert find_toggle_status(toggle, buggy).state is State.BUGGY
    disagree = find_stale(toggle, {"m": FIXED, "n": text.format("")})
    assert disagree.problem == "its edits disagree: m:f is fixed, n:K.g is buggy"
    assert find_stale(toggle, {"m": FIXED}).problem == "there is no module n"
    text = "def f():\n    width = rows * topk\n    use(width)\n"
    assert (
        find_stale(SEVERAL, {"m": text}).problem == "its edits disagree: m:f is fixed, m:f is buggy"
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (FIXED, State.FIXED),
        (BUGGY, State.BUGGY),
        ("def f(): new(rows, topk)\n", State.FIXED),
        ("def f(): new(rows)\n", State.BUGGY),
        ("def f(): pass\n", State.STALE),
    ],
)
def test_an_unversioned_checkout_takes_the_matching_variant(text: str, wanted: State) -> None:
    assert find_state(RANGED, text, None) is wanted


def test_an_unversioned_checkout_prefers_the_newest_variant() -> None:
    text = "def f():\n    width = rows\n    new(rows, topk)\n"
    finding = find_toggle_status(RANGED, Memory({"m": text}, None))
    assert (finding.state, finding.variant) == (State.FIXED, RANGED.variants[1])
    finding = find_stale(RANGED, {"m": "def f():\n    new(rows, topk, 1)\n"}, None)
    assert finding.variant == RANGED.variants[1]
    assert "+new(rows, topk, 1)" in finding.nearest


def test_an_unversioned_checkout_counts_as_newer_than_all() -> None:
    """Where a range has no end, code that is gone is stale; a range that ended had it gone."""
    assert find_toggle_status(RANGED, Memory({"other": FIXED}, None)).state is State.ABSENT
    moved = make_toggle(
        make_variant((PAIR,), releases="<0.5.13"), make_variant((PAIR,), "n:f", ">=0.5.13")
    )
    assert find_stale(moved, {"other": FIXED}, None).problem == "there is no module n"
    assert find_stale(moved, {"n": "def g():\n    pass\n"}, None).problem == "n defines no f"
