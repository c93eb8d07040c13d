"""An app of the user's own: the README's diff, its rounds without processes, and the real ones."""

import difflib
import importlib
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")

from exchange.loops import ask, data_of, loss, plan_for
from flower import fakegrid  # sets what Flower's processes set
from flwr.app import Context, Error, Message, RecordDict

import fetchsgd as fs
from fetchsgd.flower.own_app import _Clients, federate, take_part
from fetchsgd.flower.processes import Federation
from fetchsgd.flower.protocol import PAYLOAD, WIRE

ROOT = Path(__file__).parents[2]
APP = ROOT / "examples/flower_own_app"
ROUNDS = 5


class Nodes:
    """Flower's grid for ClientApps that are called here."""

    def __init__(self, plan, nodes=3):
        self.plan = plan
        self.contexts = {
            node + 100: Context(1, node + 100, {"partition-id": node}, RecordDict(), {})
            for node in range(nodes)
        }
        self.behave = {}
        self.asked = []

    def get_node_ids(self):
        return list(self.contexts)

    def send_and_receive(self, messages, *, timeout):
        assert timeout > 0
        return [reply for message in messages if (reply := self._answer(message)) is not None]

    def _answer(self, message):
        node = message.metadata.dst_node_id
        self.asked.append(node)
        message.metadata.__dict__["_message_id"] = f"message-{len(self.asked)}"
        context = self.contexts[node]
        client = context.node_config["partition-id"]
        reply = take_part(message, context, self.plan, loss, data_of(client))
        return self.behave.get(node, lambda _, reply: reply)(message, reply)


def test_is_a_loop_of_ones_own():
    assert fakegrid.TaskIdentity.run_id == 1
    plan = plan_for({"name": "fetchsgd", "k": 20, "cols": 40}, grid="steps", rounds=ROUNDS)
    grid, seen = Nodes(plan), []
    server = federate(grid, plan, after_round=lambda _, stepped: seen.append(stepped.clients))
    own, states = fs.Server(plan), {}
    numbers = {node: number for number, node in enumerate(dict.fromkeys(grid.asked))}
    for _ in range(ROUNDS):
        for node in grid.contexts:
            own_data = data_of(node - 100)
            request = own.request(numbers[node])
            reply, states[node] = fs.client_update(request, plan, loss, own_data, states.get(node))
            assert own.receive(reply) is None
        own.step()
    assert torch.equal(own.weights, server.weights)
    assert own.traffic == server.traffic
    assert [sorted(clients) for clients in seen] == [[0, 1, 2]] * ROUNDS


def test_nodes_that_forget_lie_or_fail_do_no_harm():
    plan = plan_for("uncompressed", grid="steps", rounds=ROUNDS)
    grid = Nodes(plan, 4)

    def forgets(_, reply):
        grid.contexts[101].state = RecordDict()
        return reply

    def lies(_, reply):
        array = reply.content[PAYLOAD][WIRE]
        array.data = array.data[:-1] + bytes([array.data[-1] ^ 1])
        return reply

    grid.behave = {
        101: forgets,
        102: lies,
        103: lambda message, _: Message(Error(0, "no disk"), reply_to=message),
    }
    steps = []
    server = federate(grid, plan, after_round=lambda _, stepped: steps.append(stepped.clients))
    assert server.round == ROUNDS
    assert all(len(clients) == 2 for clients in steps)
    # Everything anew but in the first two rounds: version 0 is made from the seed.
    assert grid.asked.count(101) == 2 * ROUNDS - 2


def test_mistakes_get_sentences():
    plan = plan_for("uncompressed")
    with pytest.raises(fs.UserError, match="how many rounds"):
        federate(Nodes(plan), plan)
    with pytest.raises(fs.UserError, match="3 nodes are there, and min_nodes is 5"):
        federate(Nodes(plan), plan, rounds=1, min_nodes=5, timeout=0.0)
    grid = Nodes(plan)
    grid.behave = dict.fromkeys(grid.contexts, lambda *_: None)
    with pytest.raises(fs.UserError, match="no client has replied to round 0"):
        federate(grid, plan, rounds=1)


def test_a_fraction_of_the_nodes_takes_part():
    plan = plan_for("uncompressed", grid="steps", rounds=ROUNDS)
    grid = Nodes(plan, 6)
    federate(grid, plan, fraction=0.5)
    assert len(grid.asked) == 3 * ROUNDS
    assert len(set(grid.asked)) > 3
    server, states = fs.Server(plan), {}
    ask(server, plan, 0, states)
    assert server.replies == (0,)


def test_the_readme_shows_the_diff_and_it_is_short():
    page, changed = (APP / "README.md").read_text(), 0
    for name in ("client", "server"):
        files = [APP / f"quickstart/{name}_{kind}.py" for kind in ("app", "fetchsgd")]
        before, after = (file.read_text().splitlines() for file in files)
        names = [file.name for file in files]
        lines = list(difflib.unified_diff(before, after, *names, n=1, lineterm=""))
        assert "```diff\n" + "\n".join(line.rstrip() for line in lines) + "\n```" in page
        changed += sum(line.startswith("+") and len(line) > 1 for line in lines[2:])
    assert changed <= 16


def test_ids_of_nodes_are_as_large_as_flower_draws_them():
    plan, ids = plan_for("uncompressed"), [5, 2**63 - 1, 2**63 + 9, 2**64 - 3]
    nodes = Nodes(plan)
    nodes.contexts = dict.fromkeys(ids)
    chosen = _Clients(nodes, fs.Server(plan), 1.0).some(1.0, 1)
    assert sorted(chosen) == ids
    assert all(type(node) is int for node in chosen)


@pytest.mark.federation
def test_the_example_trains_and_sends_little(tmp_path):
    told, rounds = {}, {"fetchsgd": 4, "app": 2}
    for kind in rounds:
        app = tmp_path / kind
        (app / "quickstart").mkdir(parents=True)
        for file in APP.glob("quickstart/*.py"):
            (app / "quickstart" / file.name).write_text(file.read_text())
        settings = (APP / "pyproject.toml").read_text().replace("_fetchsgd:app", f"_{kind}:app")
        (app / "pyproject.toml").write_text(settings)
    with Federation(tmp_path / "flower") as federation:
        for node in range(2):
            federation.start_node(f"node{node}", f"partition-id={node} num-partitions=2")
        for kind, count in rounds.items():
            log = federation.run(tmp_path / kind, {"num-server-rounds": count}, timeout=240)
            found = re.findall(r"test accuracy ([0-9.]+)", log)
            assert found, log[-3000:]
            told[kind] = float(found[-1]), log
            (federation.folder / "run.log").unlink()
    assert told["fetchsgd"][0] > 0.8
    assert told["app"][0] > 0.1
    up, down = map(int, re.search(r"up and down \((\d+), (\d+)\)", told["fetchsgd"][1]).groups())
    task = importlib.util.spec_from_file_location("task", APP / "quickstart/task.py")
    module = importlib.util.module_from_spec(task)
    task.loader.exec_module(module)
    whole = 4 * sum(weights.numel() for weights in module.Net().parameters()) * 4 * 2
    assert whole / up > 20
    assert whole / down > 20
