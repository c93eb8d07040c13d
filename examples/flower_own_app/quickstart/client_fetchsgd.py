"""A client: trains the model that it was sent, and sends back what the method asks for."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fetchsgd.flower.own_app import take_part
from quickstart import task
from quickstart.plan import plan

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    part, parts = context.node_config["partition-id"], context.node_config["num-partitions"]
    loader, _ = task.load_data(part, parts)

    def local(net, loader, rate):
        loss = task.train(net, loader, context.run_config["local-epochs"], rate)
        return loss, len(loader.dataset)

    return take_part(message, context, plan(context.run_config), data=loader, train=local)
