"""Training over real machines: Flower moves the messages, everything else is as in simulation.

    settings.py      a run's settings from `[tool.flwr.app.config]`
    run.py           the simulator's `Run`, for a federation
    messages.py      what server and client tell each other
    protocol.py      the same as Flower's records, with sentences for what is not right
    held.py          the version that a client holds, and what an update makes of it
    work.py          a client's work: from weights to the payload that it sends
    taking_part.py   a client's part in a round, around that work
    keeping.py       what a client keeps between rounds: in Flower's memory, or in a folder
    client.py        the ClientApp
    rejections.py    what the server does not accept, and why
    merging.py       one reply after another into one sum
    membership.py    which node is which client, and who is asked
    conversation.py  messages out and replies in, over Flower's grid
    collecting.py    one round: ask, wait, merge
    events.py        what happened, counted
    server.py        the ServerApp: round after round, checkpoints and metrics
    keys.py          certificates and key pairs
    processes.py     a whole federation on this machine      demo.py  one command

Only client, keeping, server, conversation and protocol import Flower.
"""
