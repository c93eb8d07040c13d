"""DistributedDataParallel over a slow network: the script that you have, and ten lines more.

    torchrun --nproc-per-node=2 examples/ddp.py
    torchrun --nproc-per-node=2 examples/ddp.py --compression 32     # the lines marked by (+)

Every rank trains on its part of the digits. With the hook, ranks exchange tables of a 32nd of the
bytes instead of gradients. The rest of the loop does not know.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from fetchsgd.ddp import SketchState, sketch_hook  # (+)
from fetchsgd.tasks.digits import digits

EPOCHS, BATCH, RATE = 8, 32, 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compression", type=float)  # (+)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    task = digits()
    inputs, targets = task.train.inputs[rank::world], task.train.targets[rank::world]
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    model = DistributedDataParallel(network)
    if options.compression:  # (+)
        state = SketchState(model, options.compression)  # (+)
        model.register_comm_hook(state, sketch_hook)  # (+)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    # Ranks may have an example more or less; `join` waits for those that have.
    with model.join():
        for epoch in range(EPOCHS):
            order = torch.randperm(
                len(targets), generator=torch.Generator().manual_seed(EPOCHS * rank + epoch)
            )
            for batch in order.split(BATCH):
                optimizer.zero_grad()
                cross_entropy(model(inputs[batch]), targets[batch]).backward()
                optimizer.step()
    if rank == 0:
        with torch.no_grad():
            right = network(task.test_inputs).argmax(1) == task.test_targets
        print(f"accuracy {100 * right.float().mean():.1f} %")
        if options.compression:  # (+)
            per_step = state.sent_bytes / state.step  # (+)
            whole = 4 * sum(parameter.numel() for parameter in network.parameters())  # (+)
            print(f"{per_step:,.0f} bytes a step instead of {whole:,}")  # (+)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
