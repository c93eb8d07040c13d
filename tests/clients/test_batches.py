import numpy as np
import torch
from fourclients import cohort_like
from hypothesis import given
from hypothesis import strategies as st

from fetchsgd.clients.batches import rounded_up
from fetchsgd.tasks.base import ClientData


def test_a_cohort_as_one_batch():
    cohort = cohort_like(5)
    batch = cohort.batch
    assert batch.inputs.shape == (12, 5)
    torch.testing.assert_close(batch.shares.sum(), torch.tensor(1.0))
    shares = batch.shares.view(4, 3)
    assert not shares[~cohort.present].any()
    torch.testing.assert_close(shares.sum(dim=1), cohort.weights)


def test_a_client_alone_counts_fully_and_one_without_examples_not_at_all():
    cohort = cohort_like(5)
    assert cohort.alone(1).shares.tolist() == [1, 0, 0]
    cohort.present[1] = False
    assert cohort.alone(1).shares.tolist() == [0, 0, 0]
    assert cohort.batch.shares.isfinite().all()


@given(st.integers(1, 1 << 40))
def test_rounded_up_to_one_of_few(count):
    size = rounded_up(count)
    assert count <= size <= count * 9 / 8
    assert rounded_up(size) == size
    assert size < 16 or size % (1 << (size.bit_length() - 4)) == 0


def test_inputs_are_cut_off_behind_the_longest():
    inputs = torch.arange(4 * 40).view(4, 40)
    data = ClientData(inputs, torch.zeros(4), np.array([0, 2, 4]), np.array([3, 17, 24, 40]))
    for rows, length in (([0], 8), ([0, 1], 24), ([[0, 2], [1, 0]], 24), ([3], 40)):
        at = torch.tensor(rows)
        for where in (data, data.to(torch.device("cpu"))):
            assert torch.equal(where.read(at.numpy())[0], inputs[at][..., :length])
