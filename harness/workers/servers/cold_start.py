"""Starts SGLang's server as a user does, with the requested adaptations.

    UNFIX_ENGINE=tree-kernels python -m harness.workers.servers.cold_start --model-path …

SGLang spawns its workers. Each of them imports this module again and so applies the adaptations.
"""

from __future__ import annotations

import sys

from harness.workers.servers import adaptations

adaptations.apply_adaptations(adaptations.read_requested_names())


if __name__ == "__main__":
    adaptations.launch_server_process(sys.argv[1:])
