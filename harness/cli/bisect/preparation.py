"""The preparation of a search: a new one, one to resume, or one to replay, as a value."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.cli import guard_runs, options, resumption, run_output
from harness.core.errors import UnfixError
from harness.core.outcomes import RunStatus
from harness.fixes.registry import toggle_catalogue
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.patching import bootstrap
from harness.runs.bisect.request import BisectRequest, EarlierSearch
from harness.store.bisect.table import BisectTable
from harness.store.bisect.values import BisectSearch
from harness.store.database import Store


@dataclass(frozen=True)
class PreparedSearch:
    request: BisectRequest
    search: BisectSearch
    catalogue: ToggleCatalogue
    replayed: BisectSearch | None = None  # the log with every answer


def prepare_search(request: BisectRequest | EarlierSearch, store: Store) -> PreparedSearch:
    if isinstance(request, BisectRequest):
        return prepare_new_search(request)
    return _prepare_replay(request, store) if request.replay else _prepare_resume(request, store)


def prepare_new_search(request: BisectRequest) -> PreparedSearch:
    folders = [Path(folder) for folder in request.toggle_folders]
    names = [request.release]
    if request.kind == "releases":
        names = [request.good, request.bad, *(request.among or ())]
    guard_runs.mend_for_named_releases(names, folders, request.device)
    catalogue = toggle_catalogue.load_catalogue(folders)
    words = request.candidates
    options.report_meanings({word: catalogue.describe_match(word) for word in words})
    search_id, started = guard_runs.make_id_and_start()
    search = BisectSearch(
        id=search_id,
        kind=request.kind,
        started=started,
        symptom_command=request.command,
        command=run_output.get_recorded_command(),
        settings=_make_settings(request),
        toggles=[guard_runs.make_toggle_facts(toggle) for toggle in catalogue],
        pinned_toggles=_find_pinned_toggles(request, catalogue),
    )
    return PreparedSearch(request, search, catalogue)


def _make_settings(request: BisectRequest) -> dict[str, object]:
    code, folder = _digest_code(request), str(Path.cwd())
    return {**msgspec.to_builtins(request), "code": code, "folder": folder}


def _prepare_resume(earlier: EarlierSearch, store: Store) -> PreparedSearch:
    runs = [
        run for run in BisectTable(store).list_runs() if earlier.name or run.kind == earlier.kind
    ]
    noun = f"search over {earlier.kind}"
    stopped = BisectTable(store).load_whole(resumption.find_stopped_run(runs, earlier.name, noun))
    fresh = prepare_new_search(_read_request(earlier, stopped))
    resumption.refuse_if_changed(
        *(stopped.settings.get("code"), fresh.search.settings["code"], stopped.id),
        "the command, guards or toggles",
    )
    if stopped.settings.get("folder") != fresh.search.settings["folder"]:
        raise UnfixError(
            f"search {stopped.id} began in {stopped.settings.get('folder')}: resume it there"
        )
    if stopped.pinned_toggles != fresh.search.pinned_toggles:
        held, holds = (
            ", ".join(f"{name} {side}" for name, side in pinned.items()) or "no toggle"
            for pinned in (stopped.pinned_toggles, fresh.search.pinned_toggles)
        )
        raise UnfixError(f"search {stopped.id} held {held} in every run; this call holds {holds}")
    return PreparedSearch(fresh.request, _restart_search(fresh, stopped), fresh.catalogue)


def _prepare_replay(earlier: EarlierSearch, store: Store) -> PreparedSearch:
    log = _read_log(earlier.name, store)
    fresh = prepare_new_search(_read_request(earlier, log))
    fresh.search.pinned_toggles = log.pinned_toggles
    return PreparedSearch(fresh.request, _restart_search(fresh, log), fresh.catalogue, log)


def _restart_search(fresh: PreparedSearch, earlier: BisectSearch) -> BisectSearch:
    """Return an earlier search at its start, with its trials as known ones."""
    return msgspec.structs.replace(
        fresh.search,
        id=earlier.id,
        started=earlier.started,
        command=earlier.command,
        seconds=earlier.seconds,
        trials=earlier.trials,
    )


def _read_log(name: str, store: Store) -> BisectSearch:
    """Read a search to replay, from the store or from a record's file."""
    file = Path(name)
    if not file.is_file():
        log = BisectTable(store).get(name)
    else:
        try:
            log = msgspec.json.decode(file.read_bytes(), type=BisectSearch)
        except msgspec.MsgspecError as error:
            raise UnfixError(f"{file} is no record of a search: {error}") from error
    if log.status is RunStatus.REFUSED:
        raise UnfixError(f"search {log.id} was refused: {log.summary}")
    return log


def _read_request(earlier: EarlierSearch, search: BisectSearch) -> BisectRequest:
    """Read the request of an earlier search, with this machine's folders if the call has some."""
    if search.kind != earlier.kind:
        raise UnfixError(f"{search.id} is a search over {search.kind}")
    request = msgspec.convert(search.settings, BisectRequest)
    repository = earlier.repository or str(Path(request.repository).expanduser())
    return msgspec.structs.replace(
        request,
        toggle_folders=earlier.toggle_folders or request.toggle_folders,
        repository=repository if request.repository else "",
    )


def _digest_code(request: BisectRequest) -> str:
    """Compute a digest of a search's dependencies: toggles, suites, and its command's files."""
    files = []
    for word in request.command:
        with contextlib.suppress(OSError):  # a word may be too long for a file's name
            file = Path(word.partition("::")[0])
            if file.is_file():
                files.append(file)
    return guard_runs.digest_guards_and_toggles([*map(Path, request.toggle_folders), *files], [])


def _find_pinned_toggles(request: BisectRequest, catalogue: ToggleCatalogue) -> dict[str, str]:
    """Find the toggles that are applied or reverted in every run, the environment's included."""
    reverted, enabled = bootstrap.read_requested_ids()
    sides: dict[str, str] = {}
    for side, words in (
        ("applied", [*request.hold_applied, *enabled]),
        ("reverted", [*request.hold_reverted, *reverted]),
    ):
        for toggle in catalogue.select_all(
            [name for word in words for name in bootstrap.split_ids(word)]
        ):
            if sides.setdefault(toggle.id, side) != side:
                raise UnfixError(f"{toggle.id} cannot be both applied and reverted in every run")
    return sides
