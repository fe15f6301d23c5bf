"""The folder of a model, in the form that a server is given it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from pathlib import Path

from harness import paths
from harness.errors import NotReady
from harness.eval.matrix import MODELS

DRAFTS = "speculative-draft-model-path"


def folder(name: str) -> Path:
    """One of ours by its name, or any folder that holds a model."""
    ours = [paths.project() / place for place in MODELS]
    named = [place / name for place in ours if "/" not in name and (place / name).is_dir()]
    found = named[0] if named else Path(name).expanduser()
    if not (found / "config.json").is_file():
        here = sorted(one.name for place in ours for one in place.glob("*") if one.is_dir())
        raise NotReady(
            f"no model is called {name}: there are {', '.join(here) or 'none'}, "
            "or give a folder with a config.json"
        )
    return found.resolve()


def as_type(found: Path, dtype: str) -> Path:
    """The same weights under a config.json that says this type: some models read it there."""
    settings = json.loads((found / "config.json").read_text())
    if not dtype or settings.get("dtype", settings.get("torch_dtype")) == dtype:
        return found
    key = "dtype" if "dtype" in settings else "torch_dtype"
    settings[key] = dtype
    text = json.dumps(settings)
    digest = hashlib.sha256(f"{found} {text}".encode()).hexdigest()[:12]
    place = paths.state() / "models" / f"{found.name}-{dtype}-{digest}"
    if not place.is_dir():
        new = place.with_name(f"{place.name}.{os.getpid()}-{threading.get_ident()}")
        new.mkdir(parents=True)
        for file in found.iterdir():
            if file.name != "config.json":
                (new / file.name).symlink_to(file)
        (new / "config.json").write_text(text)
        try:
            new.rename(place)
        except OSError:  # somebody else was quicker
            shutil.rmtree(new)
    return place
