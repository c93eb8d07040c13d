"""Models as vectors: only what is trained is in them, and only what can be trained is taken."""

import pytest
import torch
from fourclients import cohort_like, gradients_on_every_path
from torch import nn
from zoo import UsedTwice

from fetchsgd.clients.gradients import ClientGradients
from fetchsgd.errors import UserError
from fetchsgd.tasks import cross_entropy
from fetchsgd.vector import FlatModel


def model_of(*parts):
    torch.manual_seed(0)
    return nn.Sequential(*parts)


class Partly(nn.Module):
    """Some parts are used, one is not, and one is used only behind a detach."""

    def __init__(self):
        super().__init__()
        self.unused, self.cut_off = nn.Linear(5, 2), nn.Linear(5, 5)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.used = nn.Linear(5, 3)

    def forward(self, x):
        return self.used(x + self.cut_off(x).detach())


def test_frozen_parameters_are_not_in_the_vector():
    module = model_of(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    module[0].requires_grad_(False)
    model = FlatModel(module)
    assert model.names == ["2.weight", "2.bias"]
    assert (model.dim, model.sizes) == (15, [12, 3])
    assert torch.equal(model.weights(), torch.cat([p.flatten() for p in module[2].parameters()]))
    x = torch.randn(6, 5)
    zeros = model.views(torch.zeros(15))
    assert not model(zeros, x).any()
    assert torch.equal(model(model.views(model.weights()), x), module(x))
    assert list(model.constants()) == ["0.weight", "0.bias"]


@pytest.mark.parametrize("frozen", ["0", "2", "0.weight", "2.bias", "4.bias"])
def test_gradients_beside_frozen_parameters(frozen):
    """The same on every path as that of the whole model, without the frozen coordinates."""
    parts = nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)
    module = model_of(*parts)
    whole, all_gradients = gradients_on_every_path(module)
    is_kept = [not name.startswith(frozen) for name in whole.names]
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    model, paths = gradients_on_every_path(module)
    assert model.dim < whole.dim
    for path, found in paths.items():
        parts = torch.split(all_gradients[path], whole.sizes, dim=1)
        expected = torch.cat([p for p, kept in zip(parts, is_kept, strict=True) if kept], dim=1)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6, msg=path)
    assert all(p.requires_grad == (n in model.names) for n, p in module.named_parameters())


def test_whole_layers_that_are_frozen_leave_one_pass_possible():
    module = model_of(nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Linear(8, 3))
    module[0].requires_grad_(False)
    gradients = ClientGradients(FlatModel(module), cross_entropy, torch.float32)
    gradients(gradients.model.weights(), cohort_like(1, 5))
    assert gradients.one_pass_serves


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_what_no_gradient_reaches_gets_zeros_and_weight_decay(weight_decay):
    torch.manual_seed(0)
    model, paths = gradients_on_every_path(Partly(), weight_decay)
    decay = torch.split(weight_decay * model.weights(), model.sizes)
    for path, found in paths.items():
        for name, part, expected in zip(
            model.names, torch.split(found, model.sizes, dim=1), decay, strict=True
        ):
            if name.startswith("used"):
                assert (part != expected).any(), (path, name)
            else:
                torch.testing.assert_close(part, expected.expand_as(part), msg=path)


def test_a_model_that_no_gradient_reaches_at_all():
    class Constant(nn.Linear):
        def forward(self, x):
            return super().forward(x).detach()

    torch.manual_seed(0)
    _, paths = gradients_on_every_path(Constant(5, 3))
    for path, found in paths.items():
        assert not found.any(), path


def test_tied_parameters_count_once():
    module = model_of(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Linear(5, 3))
    module[2].weight = module[0].weight
    model, paths = gradients_on_every_path(module)
    assert model.dim == 25 + 5 + 5 + 18
    cohort = cohort_like(5).batch
    loss = cross_entropy(module(cohort.inputs), cohort.targets) @ cohort.shares
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, module.parameters())])
    for path, found in paths.items():
        torch.testing.assert_close(found.mean(dim=0), expected, rtol=1e-4, atol=1e-6, msg=path)


def test_tied_and_frozen():
    module = model_of(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Linear(5, 3))
    module[2].weight = module[0].weight
    module[0].weight.requires_grad_(False)
    model = FlatModel(module)
    assert model.names == ["0.bias", "2.bias", "3.weight", "3.bias"]
    assert list(model.constants()) == ["0.weight"]


def test_nothing_to_train():
    with pytest.raises(UserError, match="no trainable parameters; .* requires_grad=True"):
        FlatModel(nn.Linear(5, 3).requires_grad_(False))
    with pytest.raises(UserError, match="no trainable parameters"):
        FlatModel(nn.ReLU())


def test_complex_weights_are_refused():
    module = nn.Linear(5, 3)
    module.turn = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(UserError, match="'turn' is torch.complex64; weights must be real"):
        FlatModel(module)


RUNNING = "has running statistics, which are neither trained nor sent; use GroupNorm or LayerNorm"
TOGETHER = "normalises all examples of a batch together"


@pytest.mark.parametrize(
    ("norm", "sentence"),
    [
        (nn.BatchNorm1d(4), rf"'1' \(BatchNorm1d\) {RUNNING}, or put it in eval mode"),
        (nn.BatchNorm2d(4), rf"'1' \(BatchNorm2d\) {RUNNING}"),
        (nn.BatchNorm3d(4, affine=False), rf"'1' \(BatchNorm3d\) {RUNNING}"),
        (nn.SyncBatchNorm(4), rf"'1' \(SyncBatchNorm\) {RUNNING}"),
        (nn.BatchNorm1d(4, track_running_stats=False), rf"'1' \(BatchNorm1d\) {TOGETHER}"),
        (nn.BatchNorm1d(4, track_running_stats=False).eval(), TOGETHER),
        (
            nn.InstanceNorm2d(4, track_running_stats=True),
            rf"'1' \(InstanceNorm2d\) {RUNNING}, or set track_running_stats=False",
        ),
        (nn.Sequential(nn.ReLU(), nn.BatchNorm1d(4)), rf"'1\.1' \(BatchNorm1d\) {RUNNING}"),
    ],
    ids=str,
)
def test_running_statistics_are_refused(norm, sentence):
    with pytest.raises(UserError, match=sentence):
        FlatModel(nn.Sequential(nn.Linear(5, 4), norm))


@pytest.mark.parametrize(
    "norm",
    [
        nn.GroupNorm(2, 4),
        nn.LayerNorm(4),
        nn.InstanceNorm1d(4),
        nn.InstanceNorm1d(4, affine=True),
        nn.InstanceNorm1d(4, track_running_stats=True).eval(),
        nn.BatchNorm1d(4).eval(),
    ],
    ids=str,
)
def test_norms_that_keep_nothing_are_taken(norm):
    FlatModel(nn.Sequential(nn.Linear(5, 4), norm))


def test_the_norm_may_be_the_model():
    with pytest.raises(UserError, match=rf"the model \(BatchNorm1d\) {RUNNING}"):
        FlatModel(nn.BatchNorm1d(4))


def test_statistics_of_a_norm_in_eval_mode_stay_as_they_are():
    norm = nn.BatchNorm1d(4).eval()
    norm.running_mean.fill_(0.5)
    module = model_of(nn.Linear(5, 4), norm, nn.Linear(4, 3))
    _, paths = gradients_on_every_path(module)
    mean = paths.pop("one batch")[0]
    for path, found in paths.items():
        torch.testing.assert_close(found.mean(dim=0), mean, rtol=1e-4, atol=1e-6, msg=path)
    assert (norm.running_mean == 0.5).all()


def test_a_module_with_two_names_keeps_its_own_weights():
    """torch.func.functional_call leaves it with the tensors that it was called with."""
    module = model_of(UsedTwice())[0]
    own = module.first.weight
    model, _ = gradients_on_every_path(module)
    assert module.first.weight is own
    weights = model.weights()
    assert not model(model.views(torch.zeros(model.dim)), torch.randn(2, 5)).any()
    assert module.first.weight is own
    assert torch.equal(model.weights(), weights)
