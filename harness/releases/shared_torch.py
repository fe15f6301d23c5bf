"""The CUDA torch that a machine already has; a base shares it and never copies it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.errors import NotReadyError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# Runs under the Python that has torch; Triton may be in another folder.
PROBE_SCRIPT = """
import importlib.metadata, importlib.util, json, os, platform, sys
import torch
specs = [importlib.util.find_spec(name) for name in ("torch", "triton")]
folders = list(dict.fromkeys(os.path.dirname(os.path.dirname(s.origin)) for s in specs if s))
distributions = importlib.metadata.distributions(path=folders)
print(json.dumps({
    "version": platform.python_version(),
    "folders": folders,
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
    "packages": {d.metadata["Name"]: d.version for d in distributions},
}))
"""
TORCH_OPTION_HINT = (
    "`unfix releases add VERSION --device cuda --torch PYTHON` names the one that has it"
)


@dataclass(frozen=True)
class SharedTorch:
    """An installed torch: its Python, its folders and the packages next to it."""

    python: str
    version: str  # that Python's version
    folders: list[str]  # the first one holds torch
    torch: str  # torch's version
    cuda: str  # the CUDA version of its build
    packages: dict[str, str]  # versions by name

    def is_unchanged(self) -> bool:
        """Return whether the same version of torch is still in its folder."""
        file = Path(self.folders[0]) / "torch" / "version.py"
        return file.is_file() and f"'{self.torch}'" in file.read_text()

    def provides(self, requirement: Requirement) -> bool:
        """Return whether it satisfies a requirement; torch and Triton count in any version."""
        from packaging.utils import canonicalize_name

        version = self.packages.get(canonicalize_name(requirement.name))
        own = requirement.name in ("torch", "triton", "torchvision")
        return version is not None and (own or requirement.specifier.contains(version, True))

    def __str__(self) -> str:
        return (
            f"torch {self.torch} for CUDA {self.cuda} and Triton {self.packages['triton']} "
            f"of {self.python}"
        )


def find_shared_torch(chosen_python: Path | None = None) -> SharedTorch:
    """Find the torch of a Python, or the first CUDA torch of this Python and those on PATH."""
    names = [shutil.which(name) for name in ("python3", "python")]
    pythons = (
        [str(chosen_python)]
        if chosen_python
        else list(dict.fromkeys([sys.executable, *filter(None, names)]))
    )
    reasons = []
    for python in pythons:
        torch = _probe_python(python)
        if isinstance(torch, SharedTorch):
            return torch
        reasons.append(f"{python} {torch}")
    raise NotReadyError(f"no torch for CUDA is here: {', '.join(reasons)}; {TORCH_OPTION_HINT}")


def _probe_python(python: str) -> SharedTorch | str:
    """Return the CUDA torch of a Python, or the reason why it has none."""
    try:
        done = subprocess.run([python, "-c", PROBE_SCRIPT], capture_output=True, text=True)
    except OSError as error:
        return f"does not run ({error.strerror})"
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return f"has no torch that imports ({lines[-1] if lines else 'no reason given'})"
    facts = {"python": python, **json.loads(done.stdout.splitlines()[-1])}
    if not facts["cuda"]:
        return "has a torch for the CPU only"
    from packaging.utils import canonicalize_name

    facts["packages"] = {canonicalize_name(name): v for name, v in facts["packages"].items()}
    if "triton" not in facts["packages"]:
        return "has a torch without Triton"
    return SharedTorch(**facts)
