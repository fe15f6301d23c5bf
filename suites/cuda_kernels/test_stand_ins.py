"""Stand-ins of the virtual GPU beside SGLang's CUDA kernels, which judge them on drawn calls.

THE INVARIANTS IN PLAIN WORDS
- A stand-in writes and returns what the kernel does, to the rounding of the type.
- What a kernel does not write, its stand-in leaves alone.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures import cuda_kernels
from fixtures.stand_ins.comparing_runs import load_registries
from fixtures.stand_ins.comparison import Agreement, compare_call
from fixtures.stand_ins.operator_calls import OPERATORS, OperatorCall
from harness import checking
from harness.guards import skip_not_applicable
from harness.sanitizer.device.stand_ins import STAND_INS

load_registries()
# A module with flags is built in several ways, of which a stand-in gets the one at hand.
LOADERS = {
    name: operator.loader
    for name, operator in OPERATORS.items()
    if operator.loader in cuda_kernels.list_recorded_loaders() and not STAND_INS[name].takes_build
}

pytestmark = pytest.mark.prepared(
    by=cuda_kernels.build_modules,
    names=tuple(sorted({loader.rpartition(".")[0] for loader in LOADERS.values()})),
)


def has_rows(call: OperatorCall) -> bool:
    return all(value.numel() for value in call.args if isinstance(value, torch.Tensor))


@pytest.mark.parametrize("name", LOADERS)
@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_a_stand_in_computes_what_its_kernel_does(name: str, data: st.DataObject) -> None:
    module, _, function = LOADERS[name].rpartition(".")
    load = cuda_kernels.require_kernel(module, function)
    if not cuda_kernels.is_newest():
        skip_not_applicable("calls are drawn as the newest release makes them")
    calls = OPERATORS[name].strategy().filter(has_rows)
    call = data.draw(calls.filter(lambda call: cuda_kernels.is_recorded(load, call.module)))
    agreement = Agreement()
    with checking.checked_cuda() as check:
        kernel = getattr(load(*call.module), name.rpartition(".")[2])
        sides = kernel, STAND_INS[name].function
        compare_call(agreement, OPERATORS[name], call, *sides, str(check.device))
    assert agreement.agreed, [*agreement.differences, *agreement.refusals]
