"""The kernel that makes random words gives the same bits as the plain version."""

from __future__ import annotations

import pytest
import torch

from kenyon.random import keyed_words, keyed_words_plain, mix32


def test_words_are_mixed_as_defined() -> None:
    """By whole numbers of any size, cut to 32 bits; the words given are left as they are."""

    def by_hand(x: int) -> int:
        x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
        x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
        return x ^ (x >> 16)

    words = torch.tensor([0, 1, -1, 2**31 - 1, -(2**31), 123456789, -987654321], dtype=torch.int32)
    before = words.clone()
    assert [w & 0xFFFFFFFF for w in mix32(words).tolist()] == [by_hand(w & 0xFFFFFFFF) for w in words.tolist()]
    assert torch.equal(words, before)
    assert mix32(words[::2].unsqueeze(1)).shape == (4, 1)
    assert mix32(words[:0].expand(2, 0)).shape == (2, 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("count", [1, 2048, 100_003])
def test_kernel_and_plain_agree_bit_for_bit(count: int) -> None:
    keys = torch.randint(-(2**31), 2**31, (2, 5), dtype=torch.int64).to(torch.int32)
    plain = keyed_words_plain(keys[0], keys[1], count)
    assert torch.equal(plain, keyed_words(keys[0].cuda(), keys[1].cuda(), count).cpu())
