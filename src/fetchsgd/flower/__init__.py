"""Training over real machines: Flower moves the messages, everything else is as in simulation.

    settings.py      a run's settings from `[tool.flwr.app.config]`
    protocol.py      messages as Flower's records, with sentences for what is not right
    work.py          a client's work: from weights to its vector
    client_round.py  a client's part in a round, around that work
    client_state.py  what a client keeps between rounds: in Flower's memory, or in a folder
    client.py        the ClientApp
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
    own_app.py       both sides of a round, for apps of the user's own

What is not Flower's is in fetchsgd.exchange. Only client, client_state, server, pulling, transport,
introductions, protocol and own_app import Flower.
"""
