"""Loops over the clients of the tiny task, as a user would write them."""

from __future__ import annotations

from tinytask import tiny
from torch import nn

import fetchsgd as fs

CLIENTS, PER_ROUND = 12, 4
FETCHSGD = {"name": "fetchsgd", "k": 20, "cols": 40}
TASK = tiny()


def plan_for(method="uncompressed", **settings):
    settings = {"schedule": {"peak": 0.1}} | settings
    return fs.Plan(TASK.model, method, **settings)


def data_of(client):
    own = TASK.train.only(client % CLIENTS)
    return own.inputs, own.targets


def loss(model, batch):
    """One number for each example, as tasks have it."""
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs), targets, reduction="none")


def ask(server, plan, client, states, own_loss=loss):
    """One client's part in a round; returns the reply that counted."""
    request = server.request(client)
    while True:
        reply, states[client] = fs.client_update(
            request, plan, own_loss, data_of(client), states.get(client)
        )
        request = server.receive(reply)
        if request is None:
            return reply


def train(plan, cohorts):
    server, states, sent = fs.Server(plan), {}, []
    for cohort in cohorts:
        sent += [ask(server, plan, int(client), states) for client in cohort]
        server.step()
    return server, states, sent


def cohorts(rounds):
    sampler = fs.Sampler(CLIENTS, PER_ROUND, "epoch", 0)
    return [sampler.cohort(round) for round in range(rounds)]
