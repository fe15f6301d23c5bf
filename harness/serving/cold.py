"""Starts SGLang's server afresh, as a user does, with the adaptations that were asked for.

    UNFIX_ENGINE=tree-kernels python -m harness.serving.cold --model-path …

SGLang spawns its workers, and each imports this module again, which is how it reaches them.
"""

from __future__ import annotations

import sys

from harness.serving import adaptations

adaptations.apply(adaptations.asked_for())


if __name__ == "__main__":
    adaptations.launch(sys.argv[1:])
