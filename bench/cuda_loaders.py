"""Each loader of SGLang's CUDA modules that no suite needs, launched once under check on a CPU.

    UNFIX_CUDA_BUILDS=FILE ./unfix exec --release 0.5.23 -- python bench/cuda_loaders.py [PART ...]

PART is a part of a loader's name; without one, all are launched. FILE gets what
`harness/kernels/cuda/further_builds.jsonl` holds. A call whose module is not built yet builds it.
With UNFIX_VIRTUAL_CARD=B200 the loaders are launched that need compute capability 10.0.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from loader_calls import attention, experts, four_bits, latents, pools, products, rows, tensors

from harness import checking
from harness.device.cards import CARD_VARIABLE, DEFAULT_CARD

# Each registers its calls.
MODULES = (attention, experts, four_bits, latents, pools, products, rows)


def main(parts: list[str]) -> int:
    failures, card = 0, os.environ.get(CARD_VARIABLE, DEFAULT_CARD)
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
            outcome = f"launched, {sum(tensors.COMPARISONS)} elements compared"
        except Exception as error:
            failures += 1
            print(error, file=sys.stderr)
            outcome = f"{type(error).__name__}: {error}".splitlines()[0]
        print(f"{time.monotonic() - started:6.1f} s  {loader}  {outcome}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
