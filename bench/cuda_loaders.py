"""Each loader of SGLang's CUDA modules that no suite needs, launched once under check on a CPU.

    UNFIX_CUDA_BUILDS=FILE ./unfix exec --release 0.5.23 -- python bench/cuda_loaders.py [PART ...]

PART is a part of a loader's name; without one, all are launched. FILE gets what
`harness/kernels/cuda/further_builds.jsonl` holds. A call whose module is not built yet builds it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from loader_calls import attention, experts, pools, rows, tensors

from harness import checking

MODULES = (attention, experts, pools, rows)  # each registers its calls


def main(parts: list[str]) -> int:
    failures = 0
    for loader, call in sorted(tensors.CALLS.items()):
        if parts and not any(part in loader for part in parts):
            continue
        started, outcome = time.monotonic(), "launched"
        try:
            with checking.checked_cuda():
                call()
        except Exception as error:
            failures += 1
            outcome = f"{type(error).__name__}: {error}".splitlines()[0]
        print(f"{time.monotonic() - started:6.1f} s  {loader}  {outcome}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
