"""The kernel that makes random words gives the same bits as the plain version."""

from __future__ import annotations

import pytest
import torch

from kenyon.hashing import keyed_words, keyed_words_plain


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("count", [1, 2048, 100_003])
def test_kernel_and_plain_agree_bit_for_bit(count: int) -> None:
    keys = torch.randint(-(2**31), 2**31, (2, 5), dtype=torch.int64).to(torch.int32)
    plain = keyed_words_plain(keys[0], keys[1], count)
    assert torch.equal(plain, keyed_words(keys[0].cuda(), keys[1].cuda(), count).cpu())
