"""Guard zones behind the tensors of compiled operators: bytes that belong to no tensor.

PyTorch's allocator hands out blocks of 512 bytes, so behind a storage of 1,000 bytes lie 24 that
nobody uses. They are copied in front of an operator that is not torch's own, and compared behind
it, on the operator's stream: nothing waits, and a graph that captures the operator compares at each
replay. Invariant: nothing but this check's own memory is written. Example: `out` is int32 [250] and
an operator writes 1,008 bytes; the report says that byte 0 behind `out` has changed. A storage that
fills its blocks has no zone, and a tensor that the operator allocates itself had none before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from harness.sanitizer.launches import operator_effects
from harness.sanitizer.launches.call_stacks import CallStack, capture_stack
from harness.sanitizer.launches.launch_violations import locate_launch
from harness.sanitizer.violations.exceptions import OutOfBounds, Violation

MAX_SITES = 1 << 12
UNCHANGED = 1 << 30
_TORCH_NAMESPACES = frozenset("aten prims prim _c10d_functional c10d profiler rngprims".split())


class ZoneMemory(Protocol):
    """What a device has for this check."""

    def find_zone(self, storage: torch.UntypedStorage) -> torch.Tensor | None:
        """Return the bytes behind a storage that belong to nobody, if there are some."""
        ...

    def allocate_results(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return MAX_SITES int32 as the host sees them, and as a device does."""
        ...


@dataclass(frozen=True, slots=True)
class _ZoneSite:
    """One argument of an operator, of one size, on one device."""

    number: int
    device: torch.device
    operator: str
    argument: str
    tensor: str
    storage_bytes: int
    stack: CallStack


@dataclass(frozen=True, slots=True)
class OpenZone:
    site: _ZoneSite
    zone: torch.Tensor
    before: torch.Tensor


@dataclass(slots=True)
class ZoneCounts:
    """The device's storages that compiled operators got, and those of them that had a zone."""

    storages: int = 0
    with_zone: int = 0


def is_compiled_operator(operator: Any) -> bool:
    return operator.namespace not in _TORCH_NAMESPACES


class GuardZoneCheck:
    def __init__(self, memory: ZoneMemory, report: Callable[[Violation], None]) -> None:
        self.counts = ZoneCounts()
        self._memory, self._report = memory, report
        self._sites: dict[tuple[Any, ...], _ZoneSite] = {}
        self._results: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}
        self._reported: set[int] = set()
        self._lock = threading.Lock()

    def run(self, operator: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Run a compiled operator with the zones behind its arguments compared."""
        zones = list(self._open_zones(operator, args, options))
        result = operator(*args, **options)
        for zone in zones:
            self._compare(zone)
        return result

    def _open_zones(
        self, operator: Any, args: Sequence[Any], options: dict[str, Any]
    ) -> Iterator[OpenZone]:
        found: set[int] = set()
        uses = operator_effects.find_effects(operator).list_uses(args, options, None)
        for use in uses:
            storage = use.tensor.untyped_storage()
            if storage.data_ptr() in found:
                continue
            found.add(storage.data_ptr())
            self.counts.storages += 1
            zone = self._memory.find_zone(storage)
            site = None
            if zone is not None:
                site = self._find_site(operator._schema.name, use.name, use.tensor)
            if zone is not None and site is not None:
                self.counts.with_zone += 1
                yield OpenZone(site, zone, zone.clone())

    def _find_site(self, operator: str, argument: str, tensor: torch.Tensor) -> _ZoneSite | None:
        """Find the site of an argument, or None if there are too many."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        words, size = f"{dtype} {list(tensor.shape)}", tensor.untyped_storage().nbytes()
        device = tensor.device
        key = operator, argument, words, size, device
        with self._lock:
            if device not in self._results:
                results = self._memory.allocate_results(device)
                results[0].fill_(UNCHANGED)
                self._results[device] = results
            if key not in self._sites and len(self._sites) < MAX_SITES:
                number = len(self._sites)
                self._sites[key] = _ZoneSite(
                    number, device, operator, argument, words, size, capture_stack()
                )
            return self._sites.get(key)

    def _compare(self, open_zone: OpenZone) -> None:
        """Keep the nearest byte that has changed, in the site's result."""
        zone, site = open_zone.zone, open_zone.site
        result = self._results[site.device][1][site.number : site.number + 1]
        place = torch.arange(zone.numel(), dtype=torch.int32, device=zone.device)
        nearest = place.masked_fill(zone == open_zone.before, UNCHANGED).amin(0, keepdim=True)
        result.copy_(torch.minimum(result, nearest))

    def finish(self) -> None:
        """Wait for the devices that compare zones, and report; also if a device has failed."""
        try:
            if torch.cuda.is_initialized():  # false in a fork, which has no device
                for device in list(self._results):
                    torch.cuda.synchronize(device)
        finally:
            self.read()

    def read(self) -> None:
        """Report the zones that have changed; it reads memory of the host alone."""
        for site, nearest in self._take_changed():
            self._report(
                OutOfBounds(
                    f"{site.operator} wrote past the end of {site.argument} ({site.tensor})",
                    locate_launch(site.operator, site.stack),
                    (
                        f"the byte {nearest} behind its storage of {site.storage_bytes} bytes has "
                        "changed while the operator ran, in this call or a replay of its graph",
                    ),
                )
            )

    def _take_changed(self) -> list[tuple[_ZoneSite, int]]:
        """Return the sites whose zones have changed, each once in the process."""
        with self._lock:
            values = {device: host.tolist() for device, (host, _) in self._results.items()}
            changed = [
                (site, values[site.device][site.number])
                for site in self._sites.values()
                if site.number not in self._reported
                and values[site.device][site.number] != UNCHANGED
            ]
            self._reported |= {site.number for site, _ in changed}
        return changed
