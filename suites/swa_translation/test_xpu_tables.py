"""The XPU backend's copy of the same metadata, which upstream's fix did not reach.

THE INVARIANTS IN PLAIN WORDS
- As in test_verify_tables.py: every index that a sliding-window layer will use is a slot of the
  sliding-window pool, and the right token's.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures import hybrid_pools
from fixtures import swa_translation as adapter
from harness import checking
from harness.core import device
from harness.guards import skip_not_applicable


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="xpu_backend lacks the translation of #24617 in every release up to 0.5.23",
)
@given(batch=hybrid_pools.batches(), data=st.data())
def test_the_xpu_backend_names_slots_of_the_sliding_pool(
    batch: hybrid_pools.VerifyBatch, data: st.DataObject
) -> None:
    if device.get_device() != "cpu":
        skip_not_applicable(
            "the XPU backend imports sgl_kernel as it is built for XPU: --device cpu"
        )
    order = data.draw(hybrid_pools.orders(batch), label="order")
    with checking.checked() as check:
        backend = adapter.make_xpu_backend(hybrid_pools.HybridPools(batch, check.device))
        adapter.assert_metadata_matches(backend.pools, order, backend.make_eager_metadata(order))
