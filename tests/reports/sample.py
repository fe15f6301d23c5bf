"""Sample runs of `prove`: a green one, one with every verdict and hostile text, a large one."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from harness.core.outcomes import Outcome, RunStatus, Verdict
from harness.store.prove.values import (
    CellResult,
    ProveRun,
    ReleaseFacts,
    SideRepetition,
    SideResult,
    ToggleFacts,
)

RELEASES = ["0.5.9", "0.5.10", "0.5.11", "0.5.12", "0.5.13", "0.5.14"]
ALL_RELEASES = [*RELEASES, "0.5.15", "0.5.16", "0.5.18", "0.5.20", "0.5.23"]
NASTY = (
    "</script><script>window.broken = 1</script><b>bold</b> [bold red]markup[/] [27460] "
    "</script ><!-- <script> --> "
    "a|b `code` **stars** \x1b[31mred\x1b[0m \x00\x07\x0b ünïcödé 日本語 🧪 \u202eevil\u202c "
    "&amp; <img src=x onerror=alert(1)> \ud800"
)
LONG = "x" * 3000


class Story(NamedTuple):
    """A toggle, the release in which its bug ends, and the first with its code."""

    id: str
    family: str
    symptom: str
    upstream: list[int]
    bug_ends: int
    code_begins: int
    title: str


TOGGLES = [
    Story("27460", "kv_indices", "out-of-bounds", [27460, 27338], 4, 0, "MLA EAGLE lacks topk"),
    Story("27338", "kv_indices", "out-of-bounds", [27338, 27428], 3, 0, "EAGLE lacks topk"),
    Story("kv-indices-size-check", "kv_indices", "silent-corruption", [], 0, 0, "Nothing compares"),
    Story("20606", "topk_transform", "crash", [20606], 1, 0, "Decode picks the RAGGED transform"),
    Story("25015", "draft_positions", "accuracy", [25015], 3, 0, "EAGLE runs one position ahead"),
    Story("25418-sparse-prefill-switch", "sparse_prefill", "crash", [25418], 4, 2, "Long prefill"),
    Story("25418-combine-int64", "sparse_prefill", "overflow", [25418], 4, 4, "Rows in 32 bits"),
    Story(
        "26972", "req_to_token", "overflow", [26972], 5, 0, "A row is too short for a draft tree"
    ),
]
GUARDS = {
    "kv_indices": [
        "test_padding_changes_nothing_for_the_requests",
        "test_an_eager_row[flashinfer]",
    ],
    "topk_transform": ["test_only_a_batch_with_offsets_is_told_ragged"],
    "draft_positions": ["test_each_token_is_read_at_its_own_place"],
    "sparse_prefill": ["test_no_forward_reads_what_another_left"],
    "req_to_token": ["test_reserving_stays_in_the_request_s_own_row"],
}
EXAMPLE = [
    "Failing test case: test_padding_changes_nothing_for_the_requests(",
    "    name='flashinfer-mla',",
    "    batch=Batch(lengths=(1,), topk=2, steps=2, page=1, context=3, slots=1),",
    ")",
]
PATCH = """--- a/sglang/srt/layers/attention/flashinfer_mla_backend.py
+++ b/sglang/srt/layers/attention/flashinfer_mla_backend.py
@@ -1176,9 +1176,7 @@
     def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int):
-        kv_indices_width = draft_kv_indices_buffer_width(
-            max_bs, self.topk, self.max_context_len
-        )
+        kv_indices_width = draft_kv_indices_buffer_width(max_bs, 1, self.max_context_len)
         self.cuda_graph_kv_indices = torch.zeros(
"""


def make_facts() -> list[ToggleFacts]:
    why = "The twin of 27338 in the FlashInfer MLA backend; a server cannot reach it yet."
    return [
        ToggleFacts(story.id, story.title, story.family, story.symptom, story.upstream, why)
        for story in TOGGLES
    ]


def find_state(story: Story, place: int) -> str:
    if place < story.code_begins:
        return "absent"
    return "buggy" if place < story.bug_ends else "fixed"


def find_states(place: int) -> dict[str, str]:
    return {story.id: find_state(story, place) for story in TOGGLES}


def list_guards(family: str) -> list[str]:
    return [f"suites/{family}/test_{family}.py::{name}" for name in GUARDS[family]]


def make_side(name: str, outcome: Outcome, **more: object) -> SideResult:
    plain = SideResult(side=name, outcome=outcome, seconds=0.42, overhead=0.2, reach=16)
    plain.replay = (
        "./unfix prove 27460 --release 0.5.18 --side buggy --guard "
        "'suites/kv_indices/test_kv_indices.py::test_padding' --replay AXicY2BgYGAEAAAGAAI="
    )
    return msgspec.structs.replace(plain, **more)


def make_failing_side(name: str, **more: object) -> SideResult:
    return make_side(
        name,
        Outcome.FAILED,
        **{
            "headline": "kv_indices_kernel wrote kv_indices[1, 0], outside of what program "
            "(0, 0, 1) may write",
            "example": EXAMPLE,
            "detail": "Traceback (most recent call last):\n  File ...\nAssertionError: no",
            "output": "Compiling 3 kernels\ndone\n",
        }
        | more,
    )


def make_proven_cell(
    guard: str, toggle: str, release: str, state: str, device: str = "cpu"
) -> CellResult:
    sides = {
        "fixed": make_side("fixed", Outcome.PASSED),
        "buggy": make_failing_side("buggy", reach=12),
    }
    return CellResult(
        *(guard, toggle, release, device, state, Verdict.PROVEN), sides=sides, moment="live"
    )


def make_release_facts(place: int, device: str) -> ReleaseFacts:
    known = find_states(place)
    return ReleaseFacts(
        release=ALL_RELEASES[place],
        device=device,
        versions={"python": "3.11.7", "sglang": ALL_RELEASES[place], "torch": "2.13.0"},
        machine={"system": "Linux x86_64", "cores": 2, "gpu": ""},
        seconds_to_start=11.5 + place,
        seconds=73.0 + 3 * place,
        states=known,
        patches={id: PATCH for id, state in known.items() if state != "absent"},
    )


def make_run(releases: int = 6, device: str = "cpu") -> ProveRun:
    """Return a green prove run."""
    run = ProveRun(
        id="20261121-190000",
        kind="prove",
        started="2026-11-21T19:00:00+00:00",
        status=RunStatus.FINISHED,
        seconds=73.2,
        command=["./unfix", "prove", "--all-releases"],
        settings={"profile": "default", "seed": 0},
        toggles=make_facts(),
    )
    for place in range(releases):
        here = make_release_facts(place, device)
        run.releases.append(here)
        for toggle in run.toggles:
            state = here.states[toggle.id]
            for guard in list_guards(toggle.family):
                if state == "absent":
                    why = "the code is not in this release"
                    cell = CellResult(
                        guard, toggle.id, here.release, device, state, Verdict.NA, why
                    )
                else:
                    cell = make_proven_cell(guard, toggle.id, here.release, state, device)
                run.cells.append(cell)
    return run


def one_release() -> ProveRun:
    run = make_run(6)
    newest = RELEASES[-1]
    run.releases = [here for here in run.releases if here.release == newest]
    run.cells = [cell for cell in run.cells if cell.release == newest]
    return run


def make_run_of_every_verdict(base: ProveRun | None = None) -> ProveRun:
    """Return `run` with every verdict, in these cells if the run has them, and hostile text."""
    run = base or make_run()
    run.command = ["./unfix", "prove", NASTY]
    run.toggles[3].title += " " + NASTY
    passed = make_side("fixed", Outcome.PASSED)

    def make_fixed_side(outcome: Outcome, **more: object) -> list[SideResult]:
        return [make_side("fixed", outcome, **more)]

    def both(outcome: Outcome) -> list[SideResult]:
        return [passed, make_side("buggy", outcome)]

    flaky = make_failing_side("buggy", again=[SideRepetition(Outcome.PASSED)])
    broken = make_failing_side("fixed", headline=NASTY, example=[NASTY, LONG] * 5)
    cases: dict[str, tuple[Verdict | None, list[SideResult]]] = {
        "27460 0.5.9": (Verdict.TOOTHLESS, both(Outcome.PASSED)),
        "kv-indices-size-check 0.5.9": (
            Verdict.UNREACHED,
            make_fixed_side(Outcome.PASSED, reach=0),
        ),
        "20606 0.5.13": (Verdict.BROKEN, [broken]),
        "27338 0.5.10": (Verdict.STALE, []),
        "25015 0.5.10": (Verdict.SEGFAULT, make_fixed_side(Outcome.SEGFAULT, left=2)),
        "27338 0.5.11": (Verdict.ABORT, make_fixed_side(Outcome.ABORT)),
        "20606 0.5.11": (Verdict.SIGNAL, both(Outcome.SIGNAL)),
        "27460 0.5.12": (Verdict.HANG, both(Outcome.HANG)),
        "kv-indices-size-check 0.5.12": (
            Verdict.OUT_OF_MEMORY,
            make_fixed_side(Outcome.OUT_OF_MEMORY),
        ),
        "25418-sparse-prefill-switch 0.5.12": (
            Verdict.CUDA_ERROR,
            make_fixed_side(Outcome.CUDA_ERROR),
        ),
        "27338 0.5.13": (None, make_fixed_side(Outcome.EXITED)),
        "25015 0.5.12": (
            Verdict.BROKEN,
            make_fixed_side(Outcome.ERROR, detail=NASTY + LONG, output=NASTY),
        ),
        "25015 0.5.13": (
            Verdict.BROKEN,
            [*make_fixed_side(Outcome.SKIPPED), make_side("buggy", Outcome.LOST)],
        ),
        "25015 0.5.14": (Verdict.PROVEN, both(Outcome.SEGFAULT)),
        "27338 0.5.14": (Verdict.FLAKY, [passed, flaky]),
        "26972 0.5.13": (
            Verdict.NA,
            [make_side(name, Outcome.NA) for name in ("fixed", "buggy")],
        ),
    }
    proven_cells = [cell for cell in run.cells if cell.verdict is Verdict.PROVEN]
    for name, (verdict, sides) in list(cases.items())[: len(proven_cells)]:
        named = [cell for cell in proven_cells if f"{cell.toggle} {cell.release}" == name]
        cell = (named or proven_cells)[0]
        proven_cells.remove(cell)
        cell.verdict = verdict
        has_reason = verdict in (Verdict.STALE, Verdict.NA, Verdict.FLAKY)
        cell.why = NASTY if has_reason else ""
        cell.sides = {one.side: one for one in sides}
    run.releases[0].problems.append(f"suites/x.py could not be collected: {NASTY}")
    run.releases[0].unguarded = ["26972"]
    run.cells = [
        cell for cell in run.cells if (cell.release, cell.toggle) != (RELEASES[0], "26972")
    ]
    return run


def make_lifecycle(releases: int = 6) -> ProveRun:
    """Return a run without toggles; 27460 fails on 0.5.13, whose sources are fixed."""
    run = make_run(releases)
    run.id, run.kind, run.started = "life", "lifecycle", "2026-11-21T20:00:00+00:00"
    for cell in run.cells:
        if cell.verdict is Verdict.NA:
            continue
        wrong = (cell.toggle, cell.release) == ("27460", "0.5.13")
        bug = (cell.state == "buggy") is not wrong
        as_is = make_failing_side("as is") if bug else make_side("as is", Outcome.PASSED)
        cell.sides = {"as is": as_is}
        agreed = Verdict.HAS_BUG if bug else Verdict.HAS_FIX
        cell.verdict = Verdict.DIFFERS if wrong else agreed
    return run


def make_empty_run() -> ProveRun:
    return ProveRun(
        id="none", kind="prove", started="2026-11-21T18:00:00+00:00", status=RunStatus.FINISHED
    )


def make_large_run() -> ProveRun:
    """Return 11 releases, 25 toggles, 60 guards: 1,500 cells and more, with tracebacks."""
    toggles = [
        ToggleFacts(f"{25000 + n}", f"Fault number {n}", f"family_{n // 4}", "crash", [25000 + n])
        for n in range(25)
    ]
    run = ProveRun(
        id="large",
        kind="prove",
        started="2026-11-21T19:00:00+00:00",
        status=RunStatus.FINISHED,
        seconds=1800,
        command=["./unfix", "prove"],
        toggles=toggles,
    )
    detail = "\n".join(f'  File "sglang/srt/file_{n}.py", line {n}, in function' for n in range(60))
    for release in ALL_RELEASES:
        known = {toggle.id: "fixed" for toggle in toggles}
        patches = {toggle.id: PATCH for toggle in toggles}
        run.releases.append(
            ReleaseFacts(
                release, "cpu", states=known, patches=patches, seconds=160, seconds_to_start=9
            )
        )
        for n in range(150):
            toggle = toggles[n % 25].id
            guard = (
                f"suites/family_{n % 25 // 4}/test_it.py::test_number_{n % 60}_of_many_{n // 25}"
            )
            cell = make_proven_cell(guard, toggle, release, "fixed")
            cell.sides["buggy"].detail = detail
            run.cells.append(cell)
    return run
