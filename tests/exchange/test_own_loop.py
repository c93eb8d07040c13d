"""A loop of one's own: equal to the simulator, whoever was away, whatever was lost."""

import pytest
import torch
from exchange.loops import (
    CLIENTS,
    FETCHSGD,
    TASK,
    ask,
    cohorts,
    data_of,
    loss,
    plan_for,
    train,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import fetchsgd as fs
from fetchsgd.exchange.frames import from_frame, overhead
from fetchsgd.exchange.messages import Answer, Work
from fetchsgd.exchange.own_model import OwnWork
from fetchsgd.flower.work import compute
from fetchsgd.runs.settings import resolve
from fetchsgd.runs.setup import Setup

ROUNDS = 9
ADAMW = {"steps": 3, "optimizer": "adamw", "state": "keep", "eps": 0.01}
METHODS = [
    (FETCHSGD, {}),
    (FETCHSGD | {"hash": "fixed"}, {"quantiser": fs.Bits(16)}),
    ("uncompressed", {"quantiser": fs.Step(tau=1.0)}),
    ({"name": "true_topk", "k": 20}, {"quantiser": fs.SharedStep(density=0.5)}),
    ({"name": "local_topk", "k": 20, "local_error": True}, {}),
    ("fedavg", {"local": {"epochs": 2}}),
    ("uncompressed", {"local": ADAMW, "weight_decay": 0.1}),
    (FETCHSGD, {"averaging": "examples", "weight_decay": 0.01}),
]


@pytest.mark.parametrize(("method", "more"), METHODS, ids=str)
def test_equals_the_simulator_to_the_bit(method, more):
    """On a grid of steps: there last bits of sums, taken in another order, make no difference."""
    plan = plan_for(method, grid="steps", **more)
    server, _, sent = train(plan, cohorts(ROUNDS))
    result = fs.simulate(TASK, method, grid="steps", **more)
    assert result.rounds == server.round == ROUNDS
    trained = torch.cat([part.flatten() for part in result.model.parameters()])
    assert torch.equal(trained.detach(), server.weights)
    assert not torch.equal(server.weights, plan.setup.origin)
    # Bytes up to those of the entropy coder, which a simulation predicts.
    wire, paper = result.wire, result.paper
    assert server.traffic.paper == (paper.upload_bytes, paper.download_bytes)
    assert server.traffic.wire == (wire.upload_bytes, wire.download_bytes)
    payloads = sum(len(from_frame(frame, Answer).payload) for frame in sent)
    assert server.traffic.messages[0] == payloads + len(sent) * overhead(Answer)
    assert payloads == pytest.approx(wire.upload_bytes, rel=0.02)


def test_bytes_are_those_of_the_ledger():
    """Where no entropy coder has a hand in it, to the byte, in both directions."""
    plan = plan_for("uncompressed")
    server, states, down, up = fs.Server(plan), {}, 0, 0
    for cohort in cohorts(ROUNDS):
        for client in map(int, cohort):
            request = server.request(client)
            reply, states[client] = fs.client_update(
                request, plan, loss, data_of(client), states.get(client)
            )
            down, up = down + len(request), up + len(reply)
            assert server.receive(reply) is None
        server.step()
    replies = ROUNDS * 4
    assert server.traffic.messages == (up, down)
    ledger = server.traffic.wire
    assert up - replies * overhead(Answer) == ledger[0]
    assert down - replies * overhead(Work) == ledger[1]


@pytest.mark.parametrize("work", [{}, {"epochs": 3, "batch_size": 2, "lr_decay": 0.9, "clip": 0.5}])
def test_the_work_is_that_of_a_client_of_flower(work):
    """The order of local batches included; how tensors lie in memory may change last bits."""
    plan = plan_for("uncompressed", local=work, weight_decay=0.1)
    given = {"task": {"name": "tinytask:tiny"}, "method": {"name": "uncompressed"}, "local": work}
    setup = Setup(resolve(given, ["weight_decay=0.1"]))
    weights = torch.randn(plan.dim, generator=torch.Generator().manual_seed(0))
    for client in range(CLIENTS):
        expected = compute(setup, weights, client, 5, 0.1)
        found = OwnWork(plan.setup, client, 5, 0.1).by_loss(loss, data_of(client), weights)
        torch.testing.assert_close(found.vector, expected.vector, rtol=1e-5, atol=1e-6)
        assert found.loss == pytest.approx(expected.loss, rel=1e-5)
        assert found.examples == expected.examples


FATES = st.sampled_from(["here", "away", "lost state", "reply lost", "sent twice"])
GRIDS = [{"grid": "float32"}, {"grid": "bfloat16"}, {"grid": "steps"}, {"grid": "steps", "log": 2}]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@settings(max_examples=8)
@given(fates=st.lists(st.tuples(FATES, FATES), min_size=1, max_size=8))
def test_whoever_was_away_ends_with_the_servers_weights(grid, fates):
    plan = plan_for({"name": "true_topk", "k": 7}, **grid)
    server, states = fs.Server(plan), {}
    for round in fates:
        ask(server, plan, 0, states)  # somebody is always there
        for client, fate in enumerate(round, 1):
            if fate == "away":
                continue
            if fate == "lost state":
                states[client] = None
            if fate == "reply lost":
                request = server.request(client)
                _, states[client] = fs.client_update(
                    request, plan, loss, data_of(client), states.get(client)
                )
                continue
            reply = ask(server, plan, client, states)
            assert torch.equal(plan.setup.model.weights(), server.weights)
            if fate == "sent twice":
                with pytest.raises(fs.RejectedError, match="has replied to round .* already"):
                    server.receive(reply)
        server.step()
    for client in (0, 1, 2, 3):  # the last is new
        ask(server, plan, client, states)
        assert torch.equal(plan.setup.model.weights(), server.weights)
        assert states[client].version == len(fates)


def test_a_client_that_says_what_it_holds_needs_no_second_message():
    plan = plan_for(grid="steps")
    server, states = fs.Server(plan), {}
    ask(server, plan, 0, states)
    server.step()
    ask(server, plan, 0, states)
    server.step()
    reply, _ = fs.client_update(server.request(0, held=0), plan, loss, data_of(0), None)
    assert server.receive(reply) is None
    # And one that holds more than it is believed to, as after a reply that was lost.
    states[1] = None
    request = server.request(1)
    reply, states[1] = fs.client_update(request, plan, loss, data_of(1), None)
    server.step()
    request = server.request(1, held=states[1].version)
    assert from_frame(request, Work).round == 3
    reply, states[1] = fs.client_update(request, plan, loss, data_of(1), states[1])
    assert server.receive(reply) is None


def test_there_is_room_for_any_number_of_rounds_and_clients():
    plan = plan_for({"name": "true_topk", "k": 5}, grid="steps")
    server, states = fs.Server(plan), {}
    for round in range(70):
        ask(server, plan, 0, states)
        if round in (7, 57):
            ask(server, plan, 10 * round, states)
        server.step()
    assert server.round == 70
    for client in (0, 70, 570, 5):
        ask(server, plan, client, states)
        assert torch.equal(plan.setup.model.weights(), server.weights)


def test_a_server_that_is_loaded_goes_on_to_the_bit(tmp_path):
    method = {"name": "local_topk", "k": 9, "local_error": True, "momentum": 0.5}
    plan = plan_for(method, grid="steps", quantiser=fs.Bits(8))
    plain, _, _ = train(plan, cohorts(8))
    server, states, _ = train(plan, cohorts(5))
    server.request(11)  # a round that has begun
    server.save(tmp_path)
    before, server = (
        server,
        fs.Server.load(plan_for(method, grid="steps", quantiser=fs.Bits(8)), tmp_path),
    )
    assert server.traffic.messages == before.traffic.messages
    states = {
        n: state and fs.ClientState.from_bytes(state.to_bytes()) for n, state in states.items()
    }
    for cohort in cohorts(8)[5:]:
        for client in map(int, cohort):
            ask(server, plan, client, states)
        server.step()
    assert torch.equal(server.weights, plain.weights)
    with pytest.raises(fs.UserError, match="another plan"):
        fs.Server.load(plan_for("uncompressed"), tmp_path)
    with pytest.raises(fs.UserError, match="holds no server that was saved"):
        fs.Server.load(plan, tmp_path / "nowhere")


def test_a_mean_over_clients_is_weighed_by_examples():
    plan = plan_for("uncompressed", averaging="examples")
    server, _, _ = train(plan, [range(CLIENTS)])
    model = plan.setup.model
    model.put_weights(plan.setup.origin)
    total = loss(model.module, (TASK.train.inputs, TASK.train.targets)).mean()
    gradient = torch.cat(
        [g.flatten() for g in torch.autograd.grad(total, model.module.parameters())]
    )
    expected = plan.setup.origin - 0.1 * gradient
    torch.testing.assert_close(server.weights, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize(("method", "more"), METHODS, ids=str)
def test_a_gpu_on_either_side_makes_no_difference(method, more):
    """A server on a GPU with clients on a CPU, and the other way round."""
    here = plan_for(method, grid="steps", **more)
    there = plan_for(method, grid="steps", device="cuda", **more)
    # Devices draw the same weights from a seed, so the digest may only differ by the device.
    assert here.digest == there.digest
    for at_server, at_client in ((here, there), (there, here)):
        server, states = fs.Server(at_server), {}
        for cohort in cohorts(3):
            for client in map(int, cohort):
                ask(server, at_client, client, states)
            server.step()
        assert server.model()[0].weight.device.type == "cpu"
        assert server.weights.isfinite().all()


def test_a_run_that_diverges_keeps_its_weights():
    plan = plan_for("uncompressed", schedule={"peak": 1e39})
    server = fs.Server(plan)
    ask(server, plan, 0, {})
    with pytest.raises(fs.DivergedError, match="round 0 would make a weight infinite"):
        server.step()
    assert torch.equal(server.weights, plan.setup.origin)
    with pytest.raises(fs.DivergedError):
        server.request(0)


def test_a_rule_that_liars_cannot_steer_is_kept_with_the_server(tmp_path):
    plan = plan_for("uncompressed", merge={"name": "filtered", "groups": 4})
    rounds = cohorts(6)
    whole, _, _ = train(plan, rounds)
    server, states, _ = train(plan, rounds[:3])
    server.save(tmp_path)
    again = fs.Server.load(plan, tmp_path)
    for cohort in rounds[3:]:
        for client in cohort:
            ask(again, plan, int(client), states)
        again.step()
    assert torch.equal(again.weights, whole.weights)
    mean, _, _ = train(plan_for("uncompressed"), rounds)
    assert not torch.equal(mean.weights, whole.weights)
