"""Seeds by purpose and round, and torch's global generators for what takes no other."""

import pytest
import torch

from fetchsgd.randomness import PURPOSES, kept_globals, number, seeded_globals

CPU = torch.device("cpu")


def test_numbers_stay_what_they_are():
    """Runs of earlier versions can be repeated and resumed."""
    found = {purpose: number(3, purpose, 5) for purpose in PURPOSES}
    assert found == {
        "weights": 1374224419159112019,
        "split": 818463220519293219,
        "cohort": 8457714677105321250,
        "augment": 6180145758212258522,
        "local": 7178667128109471427,
        "quantise": 7676665696089097185,
        "spare": 5525251667612077635,
        "model": 4848602349974703868,
        "noise": 3729513947249911909,
        "rotate": 4763855332561736766,
        "group": 8850379385532052848,
        "attack": 3218790646744562354,
    }
    assert number(3, "weights") == number(3, "weights", 0) == 6233904063939786893


def test_numbers_differ_by_seed_round_and_client():
    found = {
        number(seed, "model", round, client)
        for seed in range(4) for round in range(10) for client in range(10)
    }  # fmt: skip
    assert len(found) == 400


def test_global_generators_are_seeded_and_then_as_before():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with seeded_globals(7, CPU):
        first = torch.rand(3)
        with seeded_globals(7, CPU):
            assert torch.equal(torch.rand(3), first)
        second = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    with seeded_globals(7, CPU):
        assert torch.equal(torch.rand(6), torch.cat([first, second]))


def test_global_generators_are_restored_after_an_error():
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError), kept_globals(CPU):
        torch.rand(3) @ torch.rand(4)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.gpu
def test_the_devices_generator_is_seeded_and_restored():
    device = torch.device("cuda")
    before = torch.get_rng_state(), torch.cuda.get_rng_state()
    with seeded_globals(7, device):
        first = torch.rand(3, device=device)
    with seeded_globals(7, device):
        torch.rand(3)
        assert torch.equal(torch.rand(3, device=device), first)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(torch.cuda.get_rng_state(), before[1])
