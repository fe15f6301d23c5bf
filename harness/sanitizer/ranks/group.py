"""torch's process group of a rank: each collective is one question to the host of the ranks.

Invariant: a collective has moved its bytes when it returns, on the stream on which it was called;
so `wait` has nothing left to do, except for what a rank receives. That is waited for in `wait`,
since a rank may ask for a tensor before it sends the one that its peer waits for.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from harness.core import preparation
from harness.sanitizer.device import dispatch, graphs, memory
from harness.sanitizer.launches.call_stacks import capture_stack
from harness.sanitizer.ranks.messages import Call, Collective, HostAnswer, Link, Note, TensorFacts
from harness.sanitizer.violations.exceptions import CollectiveMismatch, LostRank

BACKEND = "virtual"
_VIOLATIONS = {kind.__name__: kind for kind in (CollectiveMismatch, LostRank)}


class RankPlace:
    """This process among the ranks of its host."""

    def __init__(self, rank: int, count: int, link: Link) -> None:
        self.rank, self.count = rank, count
        self._link, self._lock = link, threading.Lock()
        self._groups: Counter[tuple[int, ...]] = Counter()

    def count_group(self, members: tuple[int, ...]) -> int:
        """Return the number of a new group among those with its members."""
        self._groups[members] += 1
        return self._groups[members]

    def exchange(self, call: Call) -> list[bytes]:
        """Send this rank's part and wait for what it gets; raise what the host reports."""
        with self._lock:
            self._link.send(call)
            answer = self._link.receive()
        if not isinstance(answer, HostAnswer):
            raise LostRank("the host of the ranks has ended")
        if answer.kind:
            raise _VIOLATIONS[answer.kind](answer.headline, details=answer.details)
        return answer.payload

    def note(self, note: Note) -> None:
        with self._lock:
            self._link.send(note)

    def announce_preparations(self) -> None:
        """Have the host not count what this rank compiles."""
        preparation.LISTENERS.append(lambda: _PreparationNote(self))


class _PreparationNote:
    def __init__(self, place: RankPlace) -> None:
        self._place = place

    def __enter__(self) -> None:
        self._place.note(Note(is_preparing=True))

    def __exit__(self, *error: object) -> None:
        self._place.note(Note())


class _FinishedWork:
    """The work of a collective that has moved its bytes, or moves them when it is waited for."""

    def __init__(self, result: Any, finish: Callable[[], None] | None = None) -> None:
        self._result, self._finish = result, finish

    def wait(self, timeout: Any = None) -> bool:
        if self._finish is not None:
            finish, self._finish = self._finish, None
            finish()
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        return self.wait()

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> Any:
        return self._result

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(self._result)
        return future


_ProcessGroup: Any = dist.ProcessGroup


class RankGroup(_ProcessGroup):  # type: ignore[misc]
    """A group of ranks: the methods that `torch.distributed` calls."""

    def __init__(self, place: RankPlace, members: Sequence[int], name: str) -> None:
        super().__init__(list(members).index(place.rank), len(members))
        self._place, self._members, self._name = place, tuple(members), name
        self._number = place.count_group(self._members)
        self.label = name

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def pg_name(self) -> str:
        return self._name

    def getBackendName(self) -> str:
        return BACKEND

    def size(self) -> int:
        return len(self._members)

    # One collective

    def _run(
        self,
        collective: Collective,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        options: Any = None,
        *,
        root: int = -1,
        tag: int = 0,
        result: Any = None,
    ) -> _FinishedWork:
        operation = _name_operation(options) if hasattr(options, "reduceOp") else ""
        call = Call(
            collective,
            self._members,
            self._number,
            self.label,
            list(map(_describe_tensor, inputs)),
            list(map(_describe_tensor, outputs)),
            operation,
            self._members[root] if root >= 0 else -1,
            tag,
            list(map(str, capture_stack())),
        )

        def move_bytes(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
            call.payload = [_read_bytes(tensor) for tensor in inputs]
            for output, part in zip(outputs, self._place.exchange(call), strict=True):
                _write_bytes(output, part)
                for source in inputs[:1]:
                    if output.is_cuda and source.is_cuda:
                        dispatch.report_derived(output, source)
            dispatch.report_writes(*outputs)

        if any(tensor.is_cuda for tensor in (*inputs, *outputs)):
            graphs.run_captured(f"dist.{collective}", move_bytes, list(inputs), list(outputs))
        else:
            move_bytes(inputs, outputs)
        return _FinishedWork(outputs if result is None else result)

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        opts = dist.AllreduceOptions() if opts is None else opts
        return self._run(Collective.ALL_REDUCE, tensors, tensors, opts)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, opts: Any) -> Any:
        outputs = tensors if self.rank() == opts.rootRank else []
        return self._run(Collective.REDUCE, tensors, outputs, opts, root=opts.rootRank)

    def broadcast(self, tensors: Any, opts: Any) -> Any:
        is_root = self.rank() == opts.rootRank
        inputs, outputs = (tensors, []) if is_root else ([], tensors)
        return self._run(Collective.BROADCAST, inputs, outputs, root=opts.rootRank, result=tensors)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._run(Collective.ALL_GATHER, inputs, outputs[0], result=outputs)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        for place, one in enumerate(inputs):
            self._run(Collective.ALL_GATHER, [one], [row[place] for row in outputs])
        return _FinishedWork(outputs)

    def all_gather_single(self, output: Any, one: Any, opts: Any = None) -> Any:
        parts = list(output.view(self.size(), -1).unbind()) if output.numel() else []
        if output.numel() != one.numel() * self.size():  # the host says whose part it is
            parts = [output]
        return self._run(Collective.ALL_GATHER, [one], parts, result=output)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        for output, one in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, one)
        return _FinishedWork(outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        return self._run(Collective.REDUCE_SCATTER, inputs[0], outputs, opts)

    def reduce_scatter_single(self, output: Any, one: Any, opts: Any) -> Any:
        parts = list(one.reshape(self.size(), -1).unbind())
        return self._run(Collective.REDUCE_SCATTER, parts, [output], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        for output, one in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, one, opts)
        return _FinishedWork(outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._run(Collective.ALL_TO_ALL, inputs, outputs)

    def all_to_all_single(
        self, output: Any, one: Any, output_sizes: Any, input_sizes: Any, opts: Any = None
    ) -> Any:
        inputs, outputs = self._split(one, input_sizes), self._split(output, output_sizes)
        return self._run(Collective.ALL_TO_ALL, inputs, outputs, result=output)

    alltoall_base = all_to_all_single

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        gathered = outputs[0] if outputs else []
        return self._run(Collective.GATHER, inputs, gathered, root=opts.rootRank, result=outputs)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        scattered = inputs[0] if inputs else []
        return self._run(Collective.SCATTER, scattered, outputs, root=opts.rootRank)

    def barrier(self, opts: Any = None) -> Any:
        return self._run(Collective.BARRIER, [], [])

    def send(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        return self._run(Collective.SEND, tensors, [], root=peer, tag=tag)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        def receive() -> None:
            self._run(Collective.RECEIVE, [], tensors, root=peer, tag=tag)

        return _FinishedWork(tensors, receive)

    def _split(self, tensor: torch.Tensor, sizes: list[int] | None) -> list[torch.Tensor]:
        """Split along the first axis, evenly without sizes."""
        if not sizes:
            sizes = [len(tensor) // self.size()] * self.size()
        return list(tensor.split(sizes))


def make_backend(place: RankPlace) -> None:
    """Register the backend whose groups are of this rank."""

    def make_group(options: Any, _: Any) -> RankGroup:
        members = list(options.global_ranks_in_group) or list(range(place.count))
        return RankGroup(place, members, options.group_id)

    dist.Backend.register_backend(BACKEND, make_group, extended_api=True, devices=["cpu", "cuda"])


def _name_operation(options: Any) -> str:
    operation = options.reduceOp
    operation = getattr(operation, "op", operation)
    return str(operation).rpartition(".")[2].lower()


def _describe_tensor(tensor: torch.Tensor) -> TensorFacts:
    return TensorFacts(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def _read_bytes(tensor: torch.Tensor) -> bytes:
    host = memory.to_host(tensor) if tensor.is_cuda else tensor.detach()
    flat = host.contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


def _write_bytes(tensor: torch.Tensor, data: bytes) -> None:
    if not data:
        return
    host = memory.to_host(tensor) if tensor.is_cuda else tensor.detach()
    fresh = torch.frombuffer(bytearray(data), dtype=tensor.dtype)
    host.copy_(fresh.view(tensor.shape))
