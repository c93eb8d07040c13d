"""Noise by the clients: one function for simulation and federation, bounded, hidden, accounted."""

import json
import math

import numpy as np
import pytest
import torch

from fetchsgd.errors import UserError
from fetchsgd.methods.messages import DenseMessage, Upload
from fetchsgd.privacy import DistributedNoise, Limit, Source
from fetchsgd.privacy.renyi import epsilon
from fetchsgd.privacy.tables import steps_of
from fetchsgd.randomness import number
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run
from fetchsgd.sums import Modular
from fetchsgd.sums.layout import Layout
from fetchsgd.sums.noise_sources import SecretNoise, SeededNoise, _draw_on_device
from fetchsgd.sums.private_levels import PrivateLevels, private_step
from fetchsgd.wire import decode, encode

DISTRIBUTED = (
    "upload.sum=modular",
    "upload.sum_bits=12",
    "privacy.mode=distributed",
    "privacy.mechanism=skellam",
    "privacy.noise=2",
    "train.clients_per_round=5",
)


def make(method="fetchsgd", *sets):
    settings = {"task": {"name": "tinytask:tiny"}, "method": {"name": method}}
    return Run(resolve(settings, ("train.device=cpu", *DISTRIBUTED, *sets)))


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


CLIP, STEP, COUNT = 1.0, 0.01, 300


def round_of(kind="skellam", source=None, clients=8, noise=1.0):
    found = DistributedNoise(kind, noise, CLIP, STEP, Layout.of(COUNT).cells, clients)
    private = PrivateLevels(found, clients).of_round(4)
    quantiser = Modular(sum_bits=12, sum_clip=1).for_round(99, None, clients, private)
    return quantiser.noisy_by(source or SeededNoise(0))


def write(vector, client, quantiser):
    """What a real client sends, through bytes."""
    upload = Upload(quantiser, 5, 4, Limit(CLIP, 1.0))
    return decode(encode(DenseMessage(COUNT).write(vector, None, client, 4, upload))).values


def numbers(n, seed=0):
    return torch.randn(n, COUNT, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", ["skellam", "discrete_gaussian"])
@pytest.mark.parametrize("source", [SeededNoise(3), SecretNoise(Source.from_seed(3))], ids=str)
def test_a_simulation_sums_what_clients_send_to_the_bit(kind, source):
    vectors, quantiser = numbers(8), round_of(kind, source)
    clients = torch.tensor([3, 1, 4, 15, 9, 2, 6, 5])
    upload = Upload(quantiser, 5, 4, Limit(CLIP, 1.0))
    together = DenseMessage(COUNT).merge(vectors, torch.ones(8) / 8, clients, upload, None)
    each = [write(v, c, quantiser) for v, c in zip(vectors, clients.tolist(), strict=True)]
    assert all(values.weight == 1 for values in each)
    total = sum(values.cells.long() for values in each)
    assert torch.equal(quantiser.centred(total), quantiser.centred(together.total))
    opened = quantiser.open(total % 4096, 8, Layout.of(COUNT), 8)
    assert torch.equal(opened.mean, quantiser.open(together.total, 8, Layout.of(COUNT), 8).mean)


WORST = {
    "one large number": lambda: 1e6 * torch.eye(COUNT)[7],
    "all alike": lambda: torch.ones(COUNT),
    "halves of levels": lambda: (torch.arange(COUNT) % 2 - 0.5) * STEP,
    "just the clip": lambda: torch.full((COUNT,), CLIP / math.sqrt(COUNT)),
    "not a number": lambda: torch.full((COUNT,), math.nan),
    "infinite": lambda: torch.full((COUNT,), math.inf),
    "random": lambda: 100 * numbers(1)[0],
}


@pytest.mark.parametrize("name", WORST)
def test_no_client_moves_the_sum_by_more_than_is_accounted(name):
    """With the noise that it has in both cases taken out: exactly, in whole numbers."""
    quantiser = round_of()
    bound = quantiser.private.levels.noise.squares
    for client in range(20):
        there, away = (
            quantiser.centred(write(vector, client, quantiser).cells.long())
            for vector in (WORST[name](), torch.zeros(COUNT))
        )
        assert int((there - away).square().sum()) <= bound


def test_what_was_never_clipped_is_bounded_all_the_same():
    quantiser = round_of()
    sent = quantiser.round_rows(50 * numbers(6), 5, torch.arange(6))
    away = quantiser.round_rows(torch.zeros(6, COUNT), 5, torch.arange(6))
    moved = (sent.levels.long() - away.levels.long()).square().sum(dim=1)
    assert int(moved.max()) <= quantiser.private.levels.noise.squares
    assert int(moved.min()) > 0


@pytest.mark.parametrize("kind", ["skellam", "discrete_gaussian"])
def test_the_noise_of_a_sum_is_as_accounted(kind):
    """40 clients that send zeros, for whom it is sized: the variance, within five deviations."""
    quantiser = round_of(kind, clients=40, noise=3.0)
    sent = quantiser.round_rows(torch.zeros(40, COUNT), 5, torch.arange(40))
    wanted = 9 * quantiser.private.levels.noise.squares
    found = float(sent.sum().double().square().mean())
    assert found == pytest.approx(wanted, rel=5 * math.sqrt(2 / sent.layout.cells))
    assert sent.levels[0].ne(sent.levels[1]).any()


def test_noise_from_a_seed_is_the_same_on_all_devices():
    noise = round_of().private.levels.noise.of_a_client
    clients, source = torch.tensor([5, 1 << 40]), SeededNoise(9)
    drawn = source.draw(noise, 700, 3, clients)
    keys = [number(9, "noise", 6), number(9, "noise", 7)]
    there = _draw_on_device(steps_of(noise.kind, noise.variance), keys, 700, clients)
    assert torch.equal(drawn, there)
    assert torch.equal(drawn[:1], source.draw(noise, 700, 3, clients[:1]))
    assert not torch.equal(drawn, source.draw(noise, 700, 4, clients))


def test_levels_without_a_source_of_noise_are_not_made():
    private = round_of().private.levels.of_round(0)
    quantiser = Modular(sum_bits=12).for_round(1, None, 8, private)
    with pytest.raises(ValueError, match="need a source of noise"):
        quantiser.round_rows(numbers(1), 5, torch.tensor([0]))


class TestStep:
    def test_it_is_as_fine_as_bits_allow_in_the_worst_case(self):
        """All clients alike and as long as the clip, with all their noise."""
        cells, clients = Layout.of(COUNT).cells, 40
        step = private_step(CLIP, 2.0, cells, 12, 1e-3, clients, 30)
        noise = DistributedNoise("skellam", 2.0, CLIP, step, cells, 30)
        private = PrivateLevels(noise, 36).of_round(0)
        quantiser = Modular(sum_bits=12, sum_clip=1).for_round(9, None, clients, private)
        wraps = 0
        for seed in range(30):
            rows = numbers(1, seed).expand(clients, COUNT)
            rows = rows / rows.norm(dim=1, keepdim=True)
            sent = quantiser.noisy_by(SeededNoise(seed)).round_rows(rows, 5, torch.arange(clients))
            wraps += int(quantiser.open(sent.sum(), clients, sent.layout, clients).wraps)
        share = wraps / (30 * cells)
        assert 0.3e-3 < share < 2e-3
        assert np.float32(step) == step

    def test_more_bits_are_finer_and_too_few_are_refused(self):
        steps = [private_step(1.0, 3.0, 2048, bits, 1e-3, 50, 40) for bits in (10, 12, 14)]
        assert steps == sorted(steps, reverse=True)
        with pytest.raises(UserError, match="sum_bits = 6 is too few for sums of 50 clients"):
            private_step(1.0, 3.0, 2048, 6, 1e-3, 50, 40)


class TestRuns:
    @pytest.mark.parametrize("method", ["fetchsgd", "true_topk", "fedavg", "uncompressed"])
    @pytest.mark.parametrize("mechanism", ["skellam", "discrete_gaussian"])
    def test_write_down_what_they_have_spent_and_no_loss(self, method, mechanism, tmp_path):
        run = make(method, f"privacy.mechanism={mechanism}")
        result = run.execute(tmp_path / "run")
        # Each client took part once in each epoch; the server sees when.
        epochs = result["epochs"]
        curve = run.private.levels.noise.curve
        assert result["epsilon"] == epsilon(curve, math.ceil(epochs), 1e-5)
        assert result["privacy"]["mechanism"] == mechanism
        assert result["privacy"]["honest"] == 4  # of five, one colludes
        assert result["train_loss"] is None
        assert all(line["train_loss"] is None for line in lines(tmp_path / "run"))
        assert result["value"] is not None
        assert result["sum_wraps"] <= 1e-2

    def test_go_on_with_the_noise_that_they_had(self, tmp_path):
        class StopError(Exception):
            pass

        def stop(seen):
            if seen.round == 3:
                raise StopError

        sets = ("checkpoint_every=2",)
        with pytest.raises(StopError):
            make("fetchsgd", *sets).execute(tmp_path / "cut", watch=stop)
        key = (tmp_path / "cut" / "noise.key").read_bytes()
        (tmp_path / "whole").mkdir()
        (tmp_path / "whole" / "noise.key").write_bytes(key)
        whole = make("fetchsgd", *sets).execute(tmp_path / "whole")
        resumed = make("fetchsgd", *sets).execute(tmp_path / "cut", resume=True)
        for name in ("value", "test_loss", "epsilon", "privacy"):
            assert resumed[name] == whole[name]

    def test_stop_within_their_budget(self):
        run = make("fetchsgd", "privacy.noise=1", "privacy.epsilon=7")
        result = run.complete().summary
        assert result["epsilon"] <= 7
        assert result["rounds"] < run.setup.rounds
        assert "one more would have spent" in result["stopped"]

    def test_take_the_noise_that_an_epsilon_asks_for(self):
        spent = make("fetchsgd", "privacy.noise=0", "privacy.epsilon=6").complete().summary
        assert 5.9 < spent["epsilon"] <= 6

    def test_do_not_open_sums_of_too_few(self):
        """With the noise of few, which is less than accounted."""
        run = make("fetchsgd", "train.clients_per_round=7")
        sizes = [
            len(run.setup.sampler.cohort(t)) for t in range(run.setup.sampler.rounds_per_epoch)
        ]
        assert sizes[-1] < run.private.levels.least <= sizes[0]
        result = run.complete().summary
        assert result["sum_unused_rounds"] == math.ceil(result["epochs"])
        assert any("its round is dropped" in note for note in run.notes)

    @pytest.mark.parametrize(
        ("sets", "sentence"),
        [
            (("upload.sum=plain",), "add upload.sum = 'modular'"),
            (("privacy.mode=central", "mechanism=gaussian"), "take privacy.mode = 'distributed'"),
            (("quantile=0.5",), "give a clip and leave it out"),
            (("averaging=examples",), "more weight than the clip allows"),
            (("upload.sum_bits=4", "privacy.noise=30"), "sum_bits = 4 is too few"),
            (("privacy.noise=0.1", "privacy.epsilon=1"), "not enough for one round"),
        ],
    )
    def test_refuse_what_cannot_be_accounted_for(self, sets, sentence):
        if sets == ("upload.sum=plain",):
            given = {"task": {"name": "tinytask:tiny"}}
            config = resolve(given, [s for s in DISTRIBUTED if not s.startswith("upload")])
            with pytest.raises(UserError, match=sentence):
                Run(config)
            return
        with pytest.raises(UserError, match=sentence):
            make("fetchsgd", *sets)


REPEATS, FAILS = 800, 1e-6


def test_membership_is_hidden_as_promised():
    """Sums with a client and without it, in fresh noise, guessed by the best test there is.

    A correct program fails once in ten thousand seeds. With a quarter of the noise it fails.
    """

    def advantage(noise):
        quantiser = round_of(noise=noise)
        cells = Layout.of(COUNT).cells
        own = quantiser.round_rows(numbers(8), 5, torch.arange(8)).levels.long()
        zero = quantiser.round_rows(torch.zeros(8, COUNT), 5, torch.arange(8)).levels.long()
        levels = own - zero  # without noise
        along = levels[2]
        scale = float(along.square().sum())
        assert scale <= quantiser.private.levels.noise.squares
        of = quantiser.private.levels.noise.of_a_client
        places = {}
        for there in (True, False):
            total = levels.sum(0) - (0 if there else along)
            found = []
            for repeat in range(REPEATS):
                drawn = SeededNoise(repeat + there * REPEATS).draw(of, cells, 4, torch.arange(8))
                noisy = quantiser.centred(total + drawn.long().sum(0))
                found.append(float(((noisy - levels.sum(0) + along) * along).sum()) / scale)
            places[there] = torch.tensor(found)
        return max(
            float((places[True] > at).double().mean() - (places[False] > at).double().mean())
            for at in torch.linspace(0, 1, 11).tolist()
        )

    # At epsilon 0 a Gaussian of this noise leaves an advantage of 2 Phi(1/2) - 1.
    most, slack = math.erf(0.5 / math.sqrt(2)), math.sqrt(math.log(2 / FAILS) / REPEATS)
    found = advantage(1.0)
    assert found <= most + slack
    assert found > most / 2  # not more noise than is paid for
    assert advantage(0.25) > most + slack
