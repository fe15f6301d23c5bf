"""Starts SGLang's server afresh, as a user does, with the adaptations that were asked for.

    UNFIX_ENGINE=tree-kernels python -m harness.workers.servers.cold_start --model-path …

SGLang spawns its workers, and each imports this module again, which is how it reaches them.
"""

from __future__ import annotations

import sys

from harness.workers.servers import adaptations

adaptations.apply_adaptations(adaptations.read_requested_names())


if __name__ == "__main__":
    adaptations.launch_server_process(sys.argv[1:])
