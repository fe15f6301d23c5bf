"""Names of kernels in a call, looked up in the sources before anything is analyzed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from harness.core.errors import UnfixError
from harness.core.wording import find_nearest_word
from harness.runs.audit.kernel_targets import is_targeted
from harness.runs.audit.release_files import iterate_sources
from harness.runs.kernels.cuda_sources import CudaSources, read_cuda_sources

_TRITON_KERNEL = re.compile(r"^[ \t]*@(?:triton\.)?jit\b.*?\bdef (\w+)", re.MULTILINE | re.DOTALL)


def refuse_unknown_words(
    words: Iterable[str], release: str, location: Path, with_cuda: bool = True
) -> None:
    """Raise an error for a word that no kernel, file or folder of a release has in its name."""
    words = list(words)
    if not words:
        return
    kernels = list(_list_triton_names(location))
    cuda_kernels = CudaSources(read_cuda_sources(location)).list_kernels()
    cuda = [(kernel.file, kernel.name) for kernel in cuda_kernels]
    for word in words:
        if any(is_targeted(_get_module(file), name, [word]) for file, name in kernels):
            continue
        of_cuda = any(word == name or word.replace(".", "/") in file for file, name in cuda)
        if with_cuda and (of_cuda or any(word.replace(".", "/") in file for file, _ in kernels)):
            continue
        if of_cuda:
            raise UnfixError(
                f"{word} is a CUDA kernel of {release}, and the audit reads Triton's: "
                f"`unfix kernels {word}` says who launches it"
            )
        names = {part for file, name in kernels + cuda for part in (name, *file.split("/"))}
        near = sorted(name for name in names if word.lower() in name.lower())
        near = near or [found for found in [find_nearest_word(word, names)] if found]
        hint = f"near it: {', '.join(near[:5])}; " if near else ""
        raise UnfixError(
            f"no kernel, module, file or folder of {release} is called {word}; {hint}"
            "`unfix kernels` lists all"
        )


def _get_module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _list_triton_names(location: Path) -> Iterator[tuple[str, str]]:
    for file, data in iterate_sources(location):
        if b"jit" in data and b"triton" in data:
            for name in _TRITON_KERNEL.findall(data.decode(errors="replace")):
                yield file, name
