"""Copied into every managed release: applies the toggles that a variable of the process requests.

The path file has chosen a checkout; it ends the process on any error here.
"""

import os
import sys

if not os.path.exists(os.path.join(sys.prefix, "unfix-complete.json")):
    sys.exit(f"the installation under {sys.prefix} is incomplete")

from harness.patching import bootstrap

bootstrap.install_import_hook()
