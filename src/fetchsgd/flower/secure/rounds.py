"""Rounds in which the server sees the sum of what clients send, and no message of any of them.

All who are invited and answer in time are in the sum; `federation.oversample` invites spares. If
too many drop out, nothing of the attempt is used; to the next one, with fresh keys, others are
invited first. Behind masks nobody can look at a single vector: what is checked is the mean.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch

from fetchsgd.errors import DivergedError, UserError
from fetchsgd.exchange.agreement import context
from fetchsgd.exchange.dispatch import Dispatch
from fetchsgd.exchange.merging import length
from fetchsgd.exchange.totals import MOST_WEIGHT, NUM_TOTALS, from_totals
from fetchsgd.flower.membership import how_many, order_of_asking
from fetchsgd.flower.secure.account import Account, SpentError
from fetchsgd.flower.secure.attempt import Attempt
from fetchsgd.flower.secure.attempt_numbers import Attempts
from fetchsgd.flower.server_round import MAX_OVERHEAD, Collector
from fetchsgd.secure import Sum, Terms, TooFewError, make_terms
from fetchsgd.secure.kinds import Kind
from fetchsgd.secure.sizes import Sizes
from fetchsgd.server.rounds import Merged, Training
from fetchsgd.sums import Modular, ModularRound
from fetchsgd.sums.layout import Layout

log = logging.getLogger("flwr.fetchsgd")


class SecureRounds:
    """Everything about secure aggregation that outlives a round."""

    def __init__(
        self,
        collector: Collector,
        directory: Mapping[int, bytes],
        attempts: Attempts,
        account: Account | None,
    ) -> None:
        self.all, self.directory, self.attempts = collector, directory, attempts
        self.account = account
        setup = collector.setup
        self.sums = cast(Modular, setup.quantiser)
        self.layout = Layout.of(setup.method.message.numbers)
        most = how_many(setup.sampler.per_round, collector.settings.oversample)
        sizes = Sizes(most, most, most - 1, self.layout.cells, self.sums.sum_bits, NUM_TOTALS)
        longest = max(sizes.message(kind) for kind in (Kind.SHARES, Kind.MASKED, Kind.REVEAL))
        collector.transport.max_reply_bytes = longest + MAX_OVERHEAD
        log.info(
            "secure aggregation: the server sees sums alone, so single replies are not checked; "
            "federation.norm_factor bounds the mean of a round"
        )

    @classmethod
    def open(
        cls, collector: Collector, folder: Path, lineage: str, account: Account | None
    ) -> SecureRounds:
        """With the directory that the settings name, or a sentence."""
        directory = collector.clients.directory
        if directory is None:
            raise UserError(
                "upload.secure = true needs every client's public key: make keys by `python -m "
                "fetchsgd.flower.keys --clients N`, and give federation.directory = "
                "'keys/directory.json'"
            )
        return cls(collector, directory, Attempts(folder, lineage), account)

    def least(self, clients: int) -> int:
        """Survivors of a round that asks for so many clients."""
        least, levels = self.sums.safety(clients).least, self.all.setup.levels
        least = max(least, min(self.all.settings.min_replies, clients))
        # Noise is sized for so many, whatever the last cohort of an epoch would have.
        return least if levels is None else max(least, levels.least)

    def collect(self, training: Training, rate: float) -> Merged:
        """Lines 4 to 10 of Algorithm 1."""
        return _SecureRound(self, training, rate).collect()


class _SecureRound:
    """The state of one round, over all attempts at it."""

    def __init__(self, rounds: SecureRounds, training: Training, rate: float) -> None:
        self.rounds, self.all, self.training = rounds, rounds.all, training
        self.round, self.rate, self.setup = training.round, rate, rounds.all.setup
        self.settings, self.events = self.all.settings, self.all.events
        expected = self.all.expected
        self.dispatch = Dispatch(training, rate, expected.digest, expected.lineage)
        sampler = self.setup.sampler
        self._context = context(
            expected.digest, self.round, rate, self.dispatch.size, training.weights
        )
        self.order = order_of_asking(sampler, self.round)
        self.enough = len(sampler.cohort(self.round))
        self.least = rounds.least(self.enough)
        self.up = self.down = 0
        upload = self.setup.upload(self.round, training.size)
        self.quantiser = cast(ModularRound, upload.quantiser)
        # Where clients take steps of their own, what they send grows with the learning rate.
        scale = 1.0 if self.setup.config.local.is_one_gradient else rate
        self.all.admission.open_round(scale)

    def collect(self) -> Merged:
        problem, is_refused = "", False
        for number in range(1, self.settings.attempts + 1):
            try:
                found = self._sum(self._cohort())
            except TooFewError as error:
                problem, is_refused = str(error), False
                self.events.count("too_few")
                log.warning("round %d, try %d is dropped: %s", self.round, number, problem)
                continue
            merged = self._opened(found)
            problem = self._refusal(found, merged)
            if not problem:
                return self._close(merged)
            is_refused = True
            self.events.count("refused_steps")
            log.warning("round %d, try %d is refused: %s", self.round, number, problem)
            self.order.sort(key=lambda client: client in found.clients)
        raise self._given_up(problem, is_refused)

    def _given_up(self, problem: str, is_refused: bool) -> Exception:
        goes_on = f"The same command continues from round {self.round}"
        times = f"round {self.round} was tried {self.settings.attempts} times"
        if is_refused:
            return DivergedError(
                f"{times}, and at last refused: {problem}. Try a lower schedule.peak, or a larger "
                f"federation.norm_factor if this is no mistake. {goes_on}"
            )
        return UserError(
            f"{times}, and at last dropped: {problem}. Start the clients that are missing, give "
            "them longer (federation.phase_deadline, federation.deadline), or allow for more that "
            f"drop out (upload.dropping, federation.oversample). {goes_on}"
        )

    def _cohort(self) -> list[int]:
        """Clients that are there and have nothing else to do, or TooFewError."""
        wanted = max(how_many(self.enough, self.settings.oversample), self.least)
        end = self.all.clock.now() + self.settings.deadline
        while True:
            self.all.look_for_nodes(self.round)
            for reply in self.all.transport.replies():
                self.all.clients.take(reply)
            found = self._candidates()[:wanted]
            if len(found) >= self.least:
                return found
            if self.all.clock.now() >= end:
                raise TooFewError(
                    f"{len(found)} clients are connected and free, but at least {self.least} of "
                    f"{self.enough} must take part"
                )
            self.all.clock.sleep(self.settings.poll)

    def _candidates(self) -> list[int]:
        nodes, busy = self.all.node_of, self.all.transport.busy()
        known = self.rounds.directory
        return [
            client
            for client in self._within_budget()
            if client in nodes and client in known and (nodes[client], client) not in busy
        ]

    def _within_budget(self) -> list[int]:
        account = self.rounds.account
        if account is None:
            return self.order
        found = [client for client in self.order if account.may_take_part(client)]
        if len(found) < self.least:
            raise SpentError(account.end)
        return found

    def _terms(self, cohort: list[int]) -> Terms:
        sums = self.rounds.sums
        run, attempt = self.rounds.attempts.begin(self.round)
        try:
            terms = make_terms(
                run, self.round, tuple(cohort), self.rounds.layout.cells, sums.sum_bits,
                colluding=sums.colluding, dropping=sums.dropping, totals=NUM_TOTALS,
                attempt=attempt, security_bits=sums.security_bits, context=self._context,
            )  # fmt: skip
            levels = self.setup.levels
            honest = 0 if levels is None else levels.noise.clients + terms.colluding
            return replace(terms, least=max(terms.least, self.least, honest))
        except UserError as error:
            raise TooFewError(str(error)) from error

    def _sum(self, cohort: list[int]) -> Sum:
        terms = self._terms(cohort)
        rounds = self.rounds
        attempt = Attempt(self.all, self.dispatch, terms, rounds.directory, rounds.account)
        try:
            return attempt.run()
        finally:
            self.up, self.down = self.up + attempt.up, self.down + attempt.down
            # Others are invited first, should there be another attempt.
            self.order.sort(key=lambda client: client in attempt.dropped)
            self.dispatch.believe(attempt.masked)
            self.dispatch.close()

    def _opened(self, found: Sum) -> Merged:
        """The mean, as a simulation opens the same sum."""
        message, count = self.setup.method.message, len(found.clients)
        total, loss = from_totals(found.totals)
        by_examples = self.setup.config.train.averaging == "examples"
        # What all weigh the same nobody need say.
        weight = total if by_examples else count
        levels = torch.from_numpy(found.cells.astype(np.int64)).to(self.setup.device)
        opened = self.quantiser.open(levels, max(weight, 1), self.rounds.layout, count)
        numbers, _ = message.exact_cost(count, self.quantiser)
        is_known = self.setup.levels is None
        return Merged(
            opened.mean.view(message.shape), np.array(found.clients, np.int64), numbers,
            float(self.up), torch.tensor(loss if is_known else math.nan),
            bytes_down=float(self.down), opened=opened, loss_is_known=is_known,
        )  # fmt: skip

    def _refusal(self, found: Sum, merged: Merged) -> str:
        """Why the mean must not be applied; nothing if it may."""
        total, _ = from_totals(found.totals)
        count = len(found.clients)
        if not count <= total <= count * MOST_WEIGHT:
            return f"{count} clients claim {total} examples in all"
        return self.all.admission.check_step(length(merged.mean))

    def _close(self, merged: Merged) -> Merged:
        step, account = length(merged.mean), self.rounds.account
        if account is not None:
            account.private.done = self.round + 1
        self.all.admission.close_round(step)
        self.events.count("replies", len(merged.clients))
        self.events.measure("step_norm", step)
        for name, value in self.all.admission.references.items():
            self.events.measure(f"reference_{name}", value)
        return merged
