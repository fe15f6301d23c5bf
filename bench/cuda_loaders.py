"""Each loader of SGLang's CUDA modules that no suite needs, launched once under check on a CPU.

    UNFIX_CUDA_BUILDS=FILE ./unfix exec --release 0.5.23 -- python -m bench.cuda_loaders [PART ...]

PART is a part of a loader's name; without one, all are launched. FILE gets what
`further_builds.jsonl` of the plug-in for SGLang holds. A call whose module is not built yet
builds it.
With UNFIX_VIRTUAL_CARD=B200 the loaders are launched that need compute capability 10.0.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter

from bench.loader_calls import (
    attention,
    experts,
    four_bits,
    headers,
    latents,
    marlin,
    pools,
    products,
    rows,
    tensors,
)
from harness import checking
from harness.sanitizer.device.cards import CARD_VARIABLE, DEFAULT_CARD

# Each registers its calls.
MODULES = (attention, experts, four_bits, headers, latents, marlin, pools, products, rows)
COMPARED, NOT_COMPARED = "launched, outputs compared", "launched, outputs not compared"
FAILED = "failed"


def main(parts: list[str]) -> int:
    outcomes, card = Counter[str](), os.environ.get(CARD_VARIABLE, DEFAULT_CARD)
    for loader, call in sorted(tensors.CALLS.items()):
        if call.card != card or (parts and not any(part in loader for part in parts)):
            continue
        started = time.monotonic()
        tensors.COMPARISONS.clear()
        try:
            with checking.checked_cuda() as check, contextlib.ExitStack() as stack:
                if not call.races:
                    stack.enter_context(check.ignore_races())
                call.run()
            kind, outcome = describe_launch(sum(tensors.COMPARISONS), call.races)
        except Exception as error:
            print(error, file=sys.stderr)
            kind, outcome = FAILED, f"{type(error).__name__}: {error}".splitlines()[0]
        outcomes[kind] += 1
        print(f"{time.monotonic() - started:6.1f} s  {loader}  {outcome}", flush=True)
    print("; ".join(f"{count} {kind}" for kind, count in outcomes.items()))
    return 1 if outcomes[FAILED] else 0


def describe_launch(compared: int, races: bool) -> tuple[str, str]:
    """Return what kind of launch a call was, and the same with its numbers."""
    unsought = "" if races else "; races were not looked for"
    if not compared:
        return NOT_COMPARED, NOT_COMPARED + unsought
    return COMPARED, f"{COMPARED}: {compared} elements{unsought}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
