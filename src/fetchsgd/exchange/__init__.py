"""A server and its clients, as they exchange bytes: without Flower, and below it.

    plan.py           what both sides must have in common: model, method, quantiser, grid, seed
    server.py         the server of a loop of your own
    client_update.py  the client of one, as a function
    own_model.py      the gradient of a model by a loss of your own, or local steps
    messages.py       what server and client tell each other
    frames.py         the same as bytes
    agreement.py      by what they notice that they have not the same in common
    client.py         a client's part in a round, whatever carries the messages
    client_state.py   what a client keeps between rounds
    dispatch.py       the server's part: what each client is sent, and holds afterwards
    merging.py        checks on a reply, and the sum of those that pass
    rejections.py     why one is rejected

Nothing is imported here: a node of Flower that only says who it is needs no torch.
"""
