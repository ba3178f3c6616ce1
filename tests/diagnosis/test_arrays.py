"""Arrays of NumPy that share their memory with a tensor are found again by where they lie."""

from __future__ import annotations

import gc

import pytest
import torch

from pseudograd.diagnosis.count.influence import Arrays

np = pytest.importorskip("numpy")


def test_what_is_made_of_an_array_has_the_marks_of_all_that_share_its_memory() -> None:
    arrays, z, elsewhere = Arrays(), torch.zeros(4, 3), torch.zeros(4, 3)
    assert arrays.mark_of(z) == 0
    whole, lower = z.numpy(), z[2:].numpy()
    arrays.add(whole, 4)
    arrays.add(lower, 8)
    arrays.add(3.0, 16)  # has no memory of its own
    assert len(arrays.all) == 2
    assert arrays.mark_of(torch.from_numpy(whole)) == arrays.mark_of(whole[1:]) == 4
    assert arrays.mark_of(torch.from_numpy(whole[3])) == 12
    assert [arrays.mark_of(one) for one in (elsewhere, elsewhere.numpy(), 3.0, None)] == [0, 0, 0, 0]
    assert arrays.mark_of(z.to_sparse()) == arrays.mark_of(torch.empty(3, device="meta")) == 0


def test_an_array_that_is_gone_leaves_no_mark() -> None:
    arrays, z = Arrays(), torch.zeros(4)
    array = z.numpy()
    arrays.add(array, 4)
    del array
    gc.collect()
    assert arrays.all == {}
    assert arrays.mark_of(z) == 0
