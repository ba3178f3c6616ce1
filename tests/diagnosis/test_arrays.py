"""Arrays of NumPy that share their memory with a tensor are known by their address."""

from __future__ import annotations

import gc

import pytest
import torch

from pseudograd.diagnosis.count.influence import Arrays

np = pytest.importorskip("numpy")


def test_a_value_has_the_marks_of_the_arrays_that_share_its_memory_while_they_live() -> None:
    arrays, z, elsewhere = Arrays(), torch.zeros(4, 3), torch.zeros(4, 3)
    assert arrays.mark_of(z) == 0
    array, lower = z.numpy(), z[2:].numpy()
    arrays.add(array, 4)
    arrays.add(lower, 8)
    arrays.add(3.0, 16)  # has no memory of its own
    assert len(arrays.all) == 2
    assert arrays.mark_of(torch.from_numpy(array)) == arrays.mark_of(array[1:]) == 4
    assert arrays.mark_of(torch.from_numpy(array[3])) == 12
    assert [arrays.mark_of(value) for value in (elsewhere, elsewhere.numpy(), 3.0, None)] == [0, 0, 0, 0]
    assert arrays.mark_of(z.to_sparse()) == arrays.mark_of(torch.empty(3, device="meta")) == 0
    del array, lower
    gc.collect()
    assert (arrays.all, arrays.mark_of(z)) == ({}, 0)
