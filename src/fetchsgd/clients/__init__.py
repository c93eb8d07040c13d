"""A client's work, for one client or for many at once (Algorithm 1, lines 6 and 7).

gathering.py    the examples of a round's clients      batches.py  as one batch, or client by client
trainer.py      one gradient, or several local steps
gradients.py    every client's own gradient at once    layer_gradients.py  layer by layer
per_client_convolutions.py  convolutions where each client has its own weights, for GPUs
graphs.py       backward passes as CUDA graphs
dropout.py      drops by run, round, client and example alone
constants.py    notices a model that changes what is not trained
evaluate.py     metric and loss on the test set        probe.py    tries a task before a run
"""
