"""Padding: which positions of a batch are real, as a mask and as offsets."""

import pytest
import torch

from tfm.model.attention.padding import Padding


def test_padding_knows_the_real_positions_and_their_offsets():
    padding = Padding.from_lengths([2, 0, 3], longest=4)
    assert padding.mask.tolist() == [[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]]
    assert padding.starts.tolist() == [0, 2, 2, 5]
    assert padding.real.tolist() == [0, 1, 8, 9, 10]
    assert padding.total == 5
    x = torch.arange(1, 13).view(3, 4)
    assert padding.unpad(x).tolist() == [1, 2, 9, 10, 11]
    assert padding.pad(padding.unpad(x)).tolist() == [[1, 2, 0, 0], [0, 0, 0, 0], [9, 10, 11, 0]]


def test_rows_without_padding_need_no_mask_and_no_copy():
    padding = Padding.from_lengths([3, 3])
    x = torch.randn(2, 3, 5)
    assert padding.mask is None
    assert padding.unpad(x).data_ptr() == x.data_ptr()
    assert torch.equal(padding.pad(padding.unpad(x)), x)


@pytest.mark.parametrize("rows", [[2, 0, 0], [2, 1], [1, 3], [1], []])
@pytest.mark.parametrize("lengths", [[3, 1, 2, 1], [3, 3, 3, 3]])
def test_selected_rows_are_as_wide_as_the_longest_of_them(lengths, rows):
    kept = Padding.from_lengths(lengths).select(torch.tensor(rows, dtype=torch.int64))
    assert kept.lengths.tolist() == [lengths[row] for row in rows]
    assert kept.starts[-1] == kept.total == sum(lengths[row] for row in rows)
    if rows:
        afresh = Padding.from_lengths([lengths[row] for row in rows])
        assert kept.longest == afresh.longest
        assert torch.equal(kept.real, afresh.real)
        assert (kept.mask is None) == (afresh.mask is None)
        assert kept.mask is None or torch.equal(kept.mask, afresh.mask)
