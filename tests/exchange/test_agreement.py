"""What clients of a round compute from has one digest, and everything in it counts."""

import torch

from fetchsgd.exchange.agreement import context

GIVEN = {"digest": "ab" * 16, "round": 3, "rate": 0.1, "size": 0.5, "weights": torch.arange(5.0)}


def test_everything_counts():
    weights = GIVEN["weights"].clone()
    weights[4] = torch.nextafter(weights[4], torch.tensor(9.0))
    changes = {
        "digest": "ab" * 15 + "ac", "round": 4, "rate": 0.2, "size": 0.25, "weights": weights,
    }  # fmt: skip
    found = [context(**GIVEN)] + [context(**GIVEN | {name: new}) for name, new in changes.items()]
    assert len(set(found)) == 1 + len(changes)
    assert context(**GIVEN) == found[0]
    assert {len(digest) for digest in found} == {32}
