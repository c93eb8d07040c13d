"""Training over real machines: Flower moves the messages, everything else is as in simulation.

    settings.py      a run's settings from `[tool.flwr.app.config]`
    agreement.py     what server and clients must agree on: settings, weights, versions
    messages.py      what server and client tell each other
    protocol.py      the same as Flower's records, with sentences for what is not right
    work.py          a client's work: from weights to the payload that it sends
    client_round.py  a client's part in a round, around that work
    client_state.py  what a client keeps between rounds: in Flower's memory, or in a folder
    client.py        the ClientApp
    rejections.py    why the server rejects a reply
    merging.py       checks on a single reply, and the sum of those that pass
    admission.py     checks on a reply by what other clients send
    round_replies.py the replies of a round: held back, rejected or merged
    membership.py    which node is which client, and who is asked
    introductions.py which clients are connected, and which versions they hold
    pulling.py       replies from Flower, each read on its own
    transport.py     messages out and replies in
    server_round.py  one round: ask, wait, merge
    events.py        what happened, counted
    server.py        the ServerApp: Algorithm 1's loop around rounds of real clients
    keys.py          certificates and key pairs
    processes.py     a whole federation on this machine      demo.py  one command

Only client, client_state, server, pulling, transport, introductions and protocol import Flower.
"""
