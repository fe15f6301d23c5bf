"""The files of `suites/zoo`: an architecture as a configuration of transformers.

    model_type: qwen3_moe     # transformers' name
    bases: [moe]              # groups of keys in bases.yaml, under the keys below
    config: {norm_topk_prob: true}
    known:                    # a claim that fails turns the run red unless it is here
      equals transformers: {reason: docs/findings/PAGE.md, releases: ">=0.5.10"}

`common` of bases.yaml is the base of every architecture. A model of several parts has its sizes in
one of them, and the keys of the others beside it:

    model_type: qwen2_vl
    within: text_config       # the bases and `config` are this part's
    composite: {vision_config: {depth: 1}}
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from harness.core import paths
from harness.core.errors import UnfixError
from harness.core.located_yaml import SafeYamlFile
from harness.core.yaml_document import suggest_nearest
from harness.store.zoo.values import ClaimResult, ZooClaim

ZOO_FOLDER = Path("suites") / "zoo"
FAMILY_FOLDER = Path("fixtures") / "zoo" / "families"
SMALLEST_KNOWN_PART = 1 / 8  # of the tolerance; rounding alone is far below it


class KnownFailure(msgspec.Struct, forbid_unknown_fields=True):
    """A claim that fails, where, and how: another failure of the claim is none of it."""

    reason: str  # in words, or the finding's page
    releases: str = ""  # a range such as ">=0.5.10", or all
    at_most: float | None = None  # the largest error that the reason explains
    says: str = ""  # words of the failure, where there is no error to measure
    ranks: str = ""  # how the model is spread where it fails, such as "tp 2", or every way

    def explains(self, claim: ClaimResult) -> bool:
        if claim.error is None:
            return bool(self.says) and self.says in claim.headline
        return self.at_most is not None and claim.error <= self.at_most

    def is_still_measured(self, claim: ClaimResult) -> bool:
        """Return whether a claim within its tolerance is too far off for the reason to be gone.

        An error just below the tolerance on one processor is just above it on another.
        """
        if self.at_most is None or claim.error is None or claim.tolerance is None:
            return False
        return claim.error > claim.tolerance * SMALLEST_KNOWN_PART


class CheckpointEdit(msgspec.Struct, forbid_unknown_fields=True):
    """A difference between the tensors that transformers saves and those of published files."""

    tensors: str  # a regular expression: whose names it matches anywhere
    rename: str | None = None  # what replaces the match
    transpose: bool = False  # the last two axes
    transformers: str = ""  # the versions that save them so, such as ">=5", or all


class QuantizedWeights(msgspec.Struct, forbid_unknown_fields=True):
    """How the checkpoint stores the matrices of linear layers and experts."""

    format: Literal["fp8_blocks", "int8_blocks", "int8_channels", "awq", "gptq"]
    group: int = 128  # the sides of a block, or the length of a group
    bits: int = 4  # of a code of awq or gptq
    skip: list[str] = []  # parts of the names of matrices that stay floats


class Architecture(msgspec.Struct, forbid_unknown_fields=True):
    """One model of the zoo."""

    model_type: str
    name: str = ""  # the file's name
    bases: list[str] = []
    config: dict[str, Any] = {}  # the keys of transformers' configuration
    within: str = ""  # the part of a composite configuration that `config` describes
    composite: dict[str, Any] = {}  # the keys beside that part
    sglang_config: dict[str, Any] = {}  # keys that SGLang alone reads from config.json
    checkpoint: list[CheckpointEdit] = []  # in their order
    quantized: QuantizedWeights | None = None
    adapters: list[int] = []  # the rank of each adapter of LoRA; the prompts take them in turn
    server: list[str] = []  # server arguments
    dtype: str = "float32"
    known: dict[str, KnownFailure | list[KnownFailure]] = {}  # the claims that fail

    def find_known_failure(self, claim: str, release: str, ranks: str = "") -> KnownFailure | None:
        """Return how a claim fails on a release and so many ranks, or None if it should hold.

        Of several entries the first whose range has the release counts.
        """
        for known in self.list_known_failures(claim):
            if known.ranks and known.ranks != ranks:
                continue
            if SpecifierSet(known.releases, prereleases=True).contains(release):
                return known
        return None

    def drop_known_failures(self, mended: Collection[str]) -> Architecture:
        """Return the row without the failures that these pages explain: their fix is enabled."""
        known: dict[str, KnownFailure | list[KnownFailure]] = {
            claim: [k for k in self.list_known_failures(claim) if k.reason not in mended]
            for claim in self.known
        }
        return msgspec.structs.replace(self, known=known)

    def list_known_failures(self, claim: str) -> list[KnownFailure]:
        known = self.known.get(claim, [])
        return known if isinstance(known, list) else [known]


def read_architectures(names: list[str], folder: Path | None = None) -> list[Architecture]:
    """Read the architectures of these names, or all."""
    folder = folder or paths.project_folder() / ZOO_FOLDER
    bases: dict[str, dict[str, Any]] = SafeYamlFile(folder / "bases.yaml").values
    files = _list_architecture_files(folder)
    for name in names:
        if name not in files:
            raise UnfixError(f"no architecture is called {name}{suggest_nearest(name, files)}")
    return [_read_architecture(files[name], bases) for name in names or files]


def list_families() -> list[str]:
    """Name the families of kernels: the modules of their folder."""
    files = (paths.project_folder() / FAMILY_FOLDER).glob("*.py")
    return sorted(file.stem for file in files if file.stem != "__init__")


def read_definition(name: str) -> str:
    """Read the file of an architecture or a kernel family: what it has."""
    root = paths.project_folder()
    families = root / FAMILY_FOLDER / f"{name}.py"
    file = families if families.is_file() else root / ZOO_FOLDER / "architectures" / f"{name}.yaml"
    return f"{name}\n{file.read_text(encoding='utf-8')}"


def select_rows(names: list[str]) -> tuple[list[Architecture], list[str]]:
    """Return the architectures and the kernel families of these names, or all."""
    families = list_families()
    if not names:
        return read_architectures([]), families
    known = [*_list_architecture_files(paths.project_folder() / ZOO_FOLDER), *families]
    for name in names:
        if name not in known:
            problem = f"no architecture and no kernel family is called {name}"
            raise UnfixError(f"{problem}{suggest_nearest(name, known)}")
    models = [name for name in names if name not in families]
    return read_architectures(models) if models else [], [
        name for name in names if name in families
    ]


def _list_architecture_files(folder: Path) -> dict[str, Path]:
    return {file.stem: file for file in sorted((folder / "architectures").glob("*.yaml"))}


def _check_known_failure(document: SafeYamlFile, claim: str, known: KnownFailure) -> None:
    if known.at_most is None and not known.says:
        raise document.make_error_at("a known failure has `at_most` or `says`", "known", claim)
    try:
        SpecifierSet(known.releases)
    except InvalidSpecifier as error:
        raise document.make_error_at(f"releases is a range: {error}", "known") from error


def _read_architecture(file: Path, bases: dict[str, dict[str, Any]]) -> Architecture:
    document = SafeYamlFile(file)
    try:
        architecture = msgspec.convert(document.values, Architecture)
    except msgspec.ValidationError as error:
        raise document.make_error(1, str(error)) from error
    for claim in architecture.known:
        if claim not in list(ZooClaim):
            raise document.make_error_at(f"no claim is called {claim}", "known")
        for known in architecture.list_known_failures(claim):
            _check_known_failure(document, claim, known)
        earlier = architecture.list_known_failures(claim)[:-1]
        if not all(known.releases or known.ranks for known in earlier):
            raise document.make_error_at(
                f"only the last entry of {claim} has no `releases`: none behind it counts", "known"
            )
    config = dict(bases["common"])
    for base in architecture.bases:
        if base not in bases:
            raise document.make_error_at(f"no base is called {base}", "bases")
        config |= bases[base]
    config |= architecture.config
    if architecture.within:
        config = architecture.composite | {architecture.within: config}
    elif architecture.composite:
        raise document.make_error_at(
            "`composite` needs `within`, the part it is beside", "composite"
        )
    return msgspec.structs.replace(architecture, name=file.stem, config=config)
