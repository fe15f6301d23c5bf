"""Finds the folder of a model, and makes variants of it in another data type."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from pathlib import Path

from harness.core import paths
from harness.core.errors import NotReadyError
from harness.runs.eval.configuration_checks import MODEL_FOLDERS

DRAFT_MODEL_OPTION = "speculative-draft-model-path"


def find_model_folder(name: str) -> Path:
    """Find a folder by the name of a model of this project, or any folder with a config.json."""
    own = [paths.project_folder() / place for place in MODEL_FOLDERS]
    named = [place / name for place in own if "/" not in name and (place / name).is_dir()]
    folder = named[0] if named else Path(name).expanduser()
    if not (folder / "config.json").is_file():
        known = sorted(one.name for place in own for one in place.glob("*") if one.is_dir())
        raise NotReadyError(
            f"no model is called {name}: there are {', '.join(known) or 'none'}, "
            "or give a folder with a config.json"
        )
    return folder.resolve()


def make_dtype_variant(model_folder: Path, dtype: str, parent: Path | None = None) -> Path:
    """Make a folder of the same weights and a config.json with this data type.

    It lies in `parent`, or else among the models of the workspace, for later runs.
    """
    settings = json.loads((model_folder / "config.json").read_text())
    if not dtype or settings.get("dtype", settings.get("torch_dtype")) == dtype:
        return model_folder
    key = "dtype" if "dtype" in settings else "torch_dtype"
    settings[key] = dtype
    text = json.dumps(settings)
    names = sorted(file.name for file in model_folder.iterdir())  # the variant links to each
    digest = hashlib.sha256(f"{model_folder} {names} {text}".encode()).hexdigest()[:12]
    place = (parent or paths.state_folder() / "models") / f"{model_folder.name}-{dtype}-{digest}"
    if not place.is_dir():
        new = place.with_name(f"{place.name}.{os.getpid()}-{threading.get_ident()}")
        new.mkdir(parents=True)
        for file in model_folder.iterdir():
            if file.name != "config.json":
                (new / file.name).symlink_to(file)
        (new / "config.json").write_text(text)
        try:
            new.rename(place)
        except OSError:  # another process has made it
            shutil.rmtree(new)
    return place
