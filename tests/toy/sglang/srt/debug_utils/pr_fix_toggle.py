"""The toy's own registry of reverts, read as the real one is: one integer, a dict of YAML texts."""

import os

_REVERT_901 = """
patches:
  - target: sglang.forms.plain
    edits:
      - match: |
          return rows * doubled
        replacement: |
          return -1
"""

_REVERT_902 = """
patches:
  - target: sglang.forms.plain
    edits:
      - match: |
          this line is not there
        replacement: ""
"""

_REGISTRY = {901: _REVERT_901, 902: _REVERT_902}


def asked_for():
    return int(os.environ.get("SGLANG_DEBUG_REVERT_PR", "0"))
