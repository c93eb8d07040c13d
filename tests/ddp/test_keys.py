"""Keys that are drawn ahead are those that are drawn one by one."""

import numpy as np
import pytest

from fetchsgd.ddp import Settings
from fetchsgd.ddp.keys import draw, drawn_ahead
from fetchsgd.sketch.permutation import draw_keys


@pytest.mark.parametrize("seed", [0, 5, 2**63 - 1])
@pytest.mark.parametrize(("first", "bucket"), [(0, 0), (1000, 3), (2**40, 2**19)])
def test_keys_drawn_ahead_are_those_of_each_step(seed, first, bucket):
    ahead = drawn_ahead(seed, first, 4, bucket).view(np.uint32)
    for step, words in enumerate(ahead.tolist()):
        one = draw(seed, first + step, bucket)
        assert Settings(seed=seed).sketch(100, first + step, bucket).seed == one.hash_seed
        assert tuple(words[:4]) == draw_keys(one.hash_seed)
        assert words[4] | words[5] << 32 == one.rounding
        assert one.rounding < 2**63
