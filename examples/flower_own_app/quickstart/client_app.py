"""A client: trains the model that it was sent, and sends it back."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart import task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    net = task.Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    part, parts = context.node_config["partition-id"], context.node_config["num-partitions"]
    loader, _ = task.load_data(part, parts)
    loss = task.train(
        net, loader, context.run_config["local-epochs"], message.content["config"]["lr"]
    )
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    records = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(records, reply_to=message)
