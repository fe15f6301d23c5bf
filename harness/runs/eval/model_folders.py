"""The folder of a model, in the form that a server is given it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from pathlib import Path

from harness.core import paths
from harness.core.errors import NotReadyError
from harness.runs.eval.matrix_file import MODEL_FOLDERS

DRAFT_MODEL_OPTION = "speculative-draft-model-path"


def find_model_folder(name: str) -> Path:
    """One of ours by its name, or any folder that holds a model."""
    ours = [paths.project_folder() / place for place in MODEL_FOLDERS]
    named = [place / name for place in ours if "/" not in name and (place / name).is_dir()]
    found = named[0] if named else Path(name).expanduser()
    if not (found / "config.json").is_file():
        here = sorted(one.name for place in ours for one in place.glob("*") if one.is_dir())
        raise NotReadyError(
            f"no model is called {name}: there are {', '.join(here) or 'none'}, "
            "or give a folder with a config.json"
        )
    return found.resolve()


def make_dtype_variant(model_folder: Path, dtype: str) -> Path:
    """The same weights under a config.json that says this type: some models read it there."""
    settings = json.loads((model_folder / "config.json").read_text())
    if not dtype or settings.get("dtype", settings.get("torch_dtype")) == dtype:
        return model_folder
    key = "dtype" if "dtype" in settings else "torch_dtype"
    settings[key] = dtype
    text = json.dumps(settings)
    digest = hashlib.sha256(f"{model_folder} {text}".encode()).hexdigest()[:12]
    place = paths.state_folder() / "models" / f"{model_folder.name}-{dtype}-{digest}"
    if not place.is_dir():
        new = place.with_name(f"{place.name}.{os.getpid()}-{threading.get_ident()}")
        new.mkdir(parents=True)
        for file in model_folder.iterdir():
            if file.name != "config.json":
                (new / file.name).symlink_to(file)
        (new / "config.json").write_text(text)
        try:
            new.rename(place)
        except OSError:  # somebody else was quicker
            shutil.rmtree(new)
    return place
