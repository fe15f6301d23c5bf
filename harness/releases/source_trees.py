"""Source trees: SGLang's sources in a folder, a checkout or a wheel, read without imports."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import zipfile
import zlib
from collections.abc import Iterator
from functools import cached_property
from importlib.util import decode_source
from pathlib import Path

from packaging.version import InvalidVersion, Version

from harness.core.cpp_scopes import CppSource
from harness.core.cpp_tokens import CPP_SUFFIXES, is_cpp_path
from harness.core.errors import NotReadyError, UnfixError
from harness.core.source_scopes import ModuleSource

SGLANG_PACKAGE = "sglang"


class SourceTree:
    """Modules by name, each read and parsed once; the subclasses read files."""

    name: str

    def __init__(self, name: str) -> None:
        self.name = name
        self._modules: dict[str, ModuleSource | None] = {}

    def read(self, module: str) -> ModuleSource | None:
        """Read a module by its dotted name, or a C++ source by its path."""
        if module not in self._modules:
            stem = module.replace(".", "/")
            is_cpp = is_cpp_path(module)
            paths = (module,) if is_cpp else (f"{stem}.py", f"{stem}/__init__.py")
            self._modules[module] = next(
                (
                    (CppSource if is_cpp else ModuleSource)(
                        module, self.describe_location(path), text
                    )
                    for path in paths
                    if (text := self.read_text(path)) is not None
                ),
                None,
            )
        return self._modules[module]

    @cached_property
    def version(self) -> Version | None:
        """The version in the release's metadata; None for a checkout without one."""
        for path in self.iterate_version_files():
            found = re.search(
                r"^(?:Version: |__version__ = version = ['\"]|__version__ = ['\"])([^'\"\s]+)",
                self.read_text(path) or "",
                re.MULTILINE,
            )
            if found:
                try:
                    return Version(found[1])
                except InvalidVersion:
                    continue
        return None

    def forget(self, module: str) -> None:
        self._modules.pop(module, None)

    def list_read_paths(self) -> list[str]:
        """List the files that the results read from this tree depend on."""
        found = [source.path for source in self._modules.values() if source is not None]
        own = [
            self.describe_location(path)
            for path in self.iterate_version_files()
            if self.read_text(path) is not None
        ]
        return sorted({*found, *own})

    def modules(self) -> Iterator[str]:
        for path in self.iterate_files():
            if path.endswith(".py"):
                yield path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def cpp_sources(self) -> Iterator[str]:
        """Iterate the paths of the C++ sources, by which `read` finds them."""
        return (path for path in self.iterate_files() if is_cpp_path(path))

    def read_text(self, path: str) -> str | None:
        content = self.read_bytes(path)
        try:
            return None if content is None else decode_source(content)
        except (SyntaxError, UnicodeDecodeError) as error:
            location = self.describe_location(path)
            raise NotReadyError(f"{location} cannot be decoded: {error}") from error

    def read_bytes(self, path: str) -> bytes | None:
        """Read a file; None if there is no such file."""
        raise NotImplementedError

    def describe_location(self, path: str) -> str:
        raise NotImplementedError

    def iterate_files(self) -> Iterator[str]:
        raise NotImplementedError

    def iterate_version_files(self) -> Iterator[str]:
        raise NotImplementedError


class FolderSourceTree(SourceTree):
    """A folder that holds the package: site-packages, or `python/` of a checkout."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(name)
        self.folder = folder

    def read_bytes(self, path: str) -> bytes | None:
        try:
            file = self.folder / path
            return None if file.is_fifo() else file.read_bytes()  # a pipe would never end
        except (FileNotFoundError, NotADirectoryError):
            return None

    def describe_location(self, path: str) -> str:
        return str(self.folder / path)

    @cached_property
    def _files(self) -> list[str]:
        found = sorted((self.folder / SGLANG_PACKAGE).rglob("*"))
        suffixes = (".py", *CPP_SUFFIXES)
        return [f.relative_to(self.folder).as_posix() for f in found if f.suffix in suffixes]

    def iterate_files(self) -> Iterator[str]:
        return iter(self._files)

    def iterate_version_files(self) -> Iterator[str]:
        for path in sorted(self.folder.glob(f"{SGLANG_PACKAGE}-*.dist-info/METADATA")):
            yield path.relative_to(self.folder).as_posix()
        yield from (f"{SGLANG_PACKAGE}/_version.py", f"{SGLANG_PACKAGE}/version.py")


class WheelSourceTree(SourceTree):
    """A wheel, read without unpacking it."""

    def __init__(self, wheel: Path, name: str) -> None:
        super().__init__(name)
        try:
            self._zip = zipfile.ZipFile(wheel)
            self._names = set(self._zip.namelist())
        except (zipfile.BadZipFile, OSError) as error:
            raise NotReadyError(
                f"{wheel} is not a whole wheel ({error}): download it again"
            ) from error
        self.wheel = wheel

    def read_bytes(self, path: str) -> bytes | None:
        if path not in self._names:
            return None
        try:
            return self._zip.read(path)
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise NotReadyError(f"{self.wheel} is damaged ({error}): download it again") from error

    def describe_location(self, path: str) -> str:
        return f"{self.wheel}!{path}"

    def iterate_files(self) -> Iterator[str]:
        return (name for name in sorted(self._names) if name.startswith(f"{SGLANG_PACKAGE}/"))

    def iterate_version_files(self) -> Iterator[str]:
        for name in self._names:
            if re.fullmatch(rf"{SGLANG_PACKAGE}-[^/]+\.dist-info/METADATA", name):
                yield name


def digest_sources(tree: SourceTree) -> str:
    """Compute a digest of a release's sources; reading 60 megabytes takes a few tenths."""
    digest = hashlib.sha256(f"{tree.version}\0".encode())
    for name in sorted(tree.iterate_files()):
        if (content := tree.read_bytes(name)) is not None:
            digest.update(b"%b\0%d\0%b\0" % (name.encode(), len(content), content))
    return digest.hexdigest()[:16]


def open_tree(path: Path) -> SourceTree:
    """Open the sources at a path: a wheel, a checkout's root, or a folder with the package."""
    if path.suffix == ".whl":
        if not path.is_file():
            raise UnfixError(f"there is no file {path}")
        return WheelSourceTree(path, path.stem.removeprefix(f"{SGLANG_PACKAGE}-").partition("-")[0])
    for folder in (path, path / "python", path.parent if path.name == SGLANG_PACKAGE else path):
        package = folder / SGLANG_PACKAGE
        if (package / "srt").is_dir():
            if next(package.rglob("*.py"), None) is None:
                raise UnfixError(f"{package} contains no module")
            return FolderSourceTree(folder, path.name)
    raise NotReadyError(
        f"{path} is neither a wheel or a checkout of {SGLANG_PACKAGE} nor a folder that contains it"
    )


def find_installed_tree() -> FolderSourceTree | None:
    """Find the SGLang that this interpreter would import."""
    spec = importlib.util.find_spec(SGLANG_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return FolderSourceTree(Path(next(iter(spec.submodule_search_locations))).parent, "current")
