"""The torch for CUDA that a machine has already: found, described, shared and never copied."""

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

# Asked of the Python that has it; where Triton lies may be another folder.
PROBE_SCRIPT = """
import importlib.metadata, importlib.util, json, os, platform, sys
import torch
specs = [importlib.util.find_spec(name) for name in ("torch", "triton")]
folders = list(dict.fromkeys(os.path.dirname(os.path.dirname(s.origin)) for s in specs if s))
found = importlib.metadata.distributions(path=folders)
print(json.dumps({
    "version": platform.python_version(),
    "folders": folders,
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
    "packages": {one.metadata["Name"]: one.version for one in found},
}))
"""
TORCH_OPTION_HINT = (
    "`unfix releases add VERSION --device cuda --torch PYTHON` names the one that has it"
)


@dataclass(frozen=True)
class SharedTorch:
    """A torch, where it lies, and what lies there with it."""

    python: str
    version: str  # of that Python
    folders: list[str]  # with torch in the first
    torch: str  # its version
    cuda: str  # that it is built for
    packages: dict[str, str]  # versions by name

    def is_unchanged(self) -> bool:
        """Whether it is still the one that was found."""
        facts = Path(self.folders[0]) / "torch" / "version.py"
        return facts.is_file() and f"'{self.torch}'" in facts.read_text()

    def provides(self, requirement: Requirement) -> bool:
        """Whether a package is shared with it: torch and its own whatever the version is."""
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
    """The torch of a Python, or the first for CUDA of those that a shell would find."""
    names = [shutil.which(name) for name in ("python3", "python")]
    pythons = (
        [str(chosen_python)]
        if chosen_python
        else list(dict.fromkeys([sys.executable, *filter(None, names)]))
    )
    reasons = []
    for python in pythons:
        found = _probe_python(python)
        if isinstance(found, SharedTorch):
            return found
        reasons.append(f"{python} {found}")
    raise NotReadyError(f"no torch for CUDA is here: {', '.join(reasons)}; {TORCH_OPTION_HINT}")


def _probe_python(python: str) -> SharedTorch | str:
    """What a Python has, or why that will not do."""
    try:
        done = subprocess.run([python, "-c", PROBE_SCRIPT], capture_output=True, text=True)
    except OSError as error:
        return f"does not run ({error.strerror})"
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return f"has none that imports ({lines[-1] if lines else 'no reason given'})"
    told = {"python": python, **json.loads(done.stdout.splitlines()[-1])}
    if not told["cuda"]:
        return "has one for the CPU alone"
    from packaging.utils import canonicalize_name

    told["packages"] = {canonicalize_name(name): v for name, v in told["packages"].items()}
    if "triton" not in told["packages"]:
        return "has one without Triton"
    return SharedTorch(**told)
