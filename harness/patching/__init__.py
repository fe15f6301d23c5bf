"""Taking fixes out and putting them in: a plan made from sources, applied at import or live.

`plan` needs the parsers and runs in unfix's own environment. What runs inside a patched process
(`boot`, `importing`, `instrument`, `attestation`) is standard library alone and of any Python
from 3.10 on, so that a release's environment needs nothing of ours.
"""
