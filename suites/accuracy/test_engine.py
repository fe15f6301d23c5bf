"""Properties that only the whole engine shows: a served model answers as plain transformers does.

THE INVARIANTS IN PLAIN WORDS

1. Tokens from the prefix cache give the same answers as computed tokens.
2. Prefilling a prompt in chunks changes nothing.
3. A retraction changes neither the request nor its neighbours.
4. A window has the size that the model was trained with: one token more moves the leads.
5. The window's size is the same in decode and in prefill.
6. A draft makes a server faster and leaves its answers the same.

Each token, and its lead over the runner-up, is compared with plain transformers in float32. The
lead matters because a model that knows its answer gives it a probability of one, so small errors
below do not show in the tokens.
"""

from __future__ import annotations

import pytest

from fixtures import accuracy
from harness.core import device
from harness.guards import skip_not_applicable

pytestmark = pytest.mark.before_forks(ready=accuracy.prepare_servers)

NATIVE = ("--attention-backend", "torch_native")
TRITON = ("--attention-backend", "triton")


@pytest.fixture(autouse=True)
def _these_servers_run_on_a_cpu() -> None:
    if device.get_device() != "cpu":
        skip_not_applicable(
            "these servers run on a CPU; on a GPU `unfix eval` serves: --device cpu"
        )


@pytest.mark.guards("prefix-positions-forgotten")
def test_a_prefix_that_lies_in_the_cache_changes_no_answer() -> None:
    accuracy.assert_answers("llama", accuracy.make_items("shared", 4), *NATIVE, warmup_count=1)


@pytest.mark.guards("chunk-positions-off-by-one")
def test_a_prompt_in_chunks_is_the_prompt() -> None:
    chunks = ("--chunked-prefill-size", "64")
    accuracy.assert_answers("llama", accuracy.make_items("needle", 3), *NATIVE, *chunks)


@pytest.mark.guards("retraction-frees-shared-pages")
def test_a_retracted_request_goes_on_as_if_nothing_had_been() -> None:
    accuracy.skip_on_releases(
        ("0.5.12",), "it pins memory for logits of a prompt: on a CPU, it ends"
    )
    items = accuracy.make_items("shared", 32)
    items = [item for place in range(4) for item in items[place::4]]  # each prefix occurs again
    with accuracy.retract_requests():
        accuracy.assert_answers("llama", items, *NATIVE, "--max-total-tokens", "700")


WRONG_AS_THEY_ARE = (
    ("0.5.9", "0.5.10"),
    "on a CPU, it answers gpt-oss wrongly as it is: docs/findings.md",
)


@pytest.mark.guards("window-one-too-wide")
def test_a_window_holds_what_the_model_was_trained_with() -> None:
    accuracy.skip_on_releases(*WRONG_AS_THEY_ARE)
    accuracy.assert_answers("gpt-oss", accuracy.make_items("needle", 2), *TRITON)


@pytest.mark.guards("32087")
def test_a_window_holds_as_much_in_decoding() -> None:
    accuracy.skip_on_releases(*WRONG_AS_THEY_ARE)
    # The window is past the copy: it drops only its own beginning.
    items = [one for one in accuracy.make_items("copying", 7) if len(one["prompt"]) == 20]
    accuracy.assert_answers("gpt-oss", items, *TRITON)


@pytest.mark.guards("verify-takes-wrong-child")
def test_a_draft_changes_no_answer() -> None:
    accuracy.skip_on_releases(("0.5.15", "0.5.16"), "on a CPU, its draft ends the server")
    accuracy.assert_answers(
        "llama",
        accuracy.make_items("recall", 2),
        *TRITON,
        *accuracy.EAGLE_ARGUMENTS,
        dtype="float16",
        draft="llama-eagle",
        stand_ins=("tree-kernels", "checked"),
    )
