"""What a partition says about itself, and what it refuses."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from splitfl.errors import SplitflError
from splitfl.model import CutError, Port, Replica, ShapeError, StateError, partition, possible_cuts


def chain(*layers):
    return nn.Sequential(*layers)


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.spare = nn.Linear(4, 5), nn.Linear(5, 2), nn.Linear(3, 3)
        self.register_buffer("offset", torch.ones(2))
        self.register_buffer("scratch", torch.ones(2), persistent=False)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x))) + self.offset * self.scratch


class Tied(nn.Module):
    def __init__(self, shared_module=False):
        super().__init__()
        self.encode, self.middle, self.decode = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        if shared_module:
            self.decode = self.encode
        self.decode.weight = self.encode.weight

    def forward(self, x):
        return self.decode(torch.tanh(self.middle(torch.tanh(self.encode(x)))))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.relu, self.end = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)

    def forward(self, x):
        return self.relu(self.end(self.relu(self.fc(x))))


X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def test_ports_states_and_names():
    parts = partition(Functional(), X, ["relu"])
    front, tail = parts.stages
    assert front.inputs == (Port(name="x", dtype=torch.float32, shape=(4,)),)
    assert front.outputs == tail.inputs == (Port(name="relu", dtype=torch.float32, shape=(5,), requires_grad=True),)
    assert front.state_names == front.parameters == ("fc1.weight", "fc1.bias")
    assert tail.parameters == ("fc2.weight", "fc2.bias")
    assert tail.buffers == ("offset",)
    assert parts.unused == ("spare.weight", "spare.bias")
    assert front.outputs[0].bytes == 20


def test_join_is_the_whole_state_and_keeps_what_no_stage_uses():
    model = Functional()
    parts = partition(model, X, ["fc1"])
    states = [{name: value + 1 for name, value in stage.state.items()} for stage in parts.stages]
    joined = parts.join(states)
    assert list(joined) == list(model.state_dict())
    assert torch.equal(joined["fc1.weight"], model.fc1.weight + 1)
    assert torch.equal(joined["spare.weight"], model.spare.weight)
    copy.deepcopy(model).load_state_dict(joined)
    with pytest.raises(StateError, match=r"state of stage 1 lacks 'offset'"):
        parts.join([states[0], {"fc2.weight": states[1]["fc2.weight"]}])
    with pytest.raises(StateError, match="1 states for 2 stages"):
        parts.join(states[:1])


def test_without_cuts_the_module_is_not_traced():
    class Wild(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            return self.fc(x) if float(x.detach().sum()) > 0 else -self.fc(x)

    model = Wild()
    (stage,) = partition(model, X, []).stages
    assert type(stage.module) is Wild
    assert stage.module is not model
    assert stage.last
    with pytest.raises(CutError, match="cannot be traced"):
        partition(model, X, ["fc"])


def test_replicas_share_nothing_with_each_other_or_the_model(bench):
    model = Functional()
    parts = partition(model, X, ["relu"])
    first, second = (Replica(parts.stages[0], bench.sgd) for _ in range(2))
    with torch.no_grad():
        first.module.fc1.weight.add_(1)
    assert torch.equal(second.state()["fc1.weight"], model.fc1.weight)
    assert torch.equal(parts.stages[0].state["fc1.weight"], model.fc1.weight)


@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        (["fc3"], r"cut = 'fc3': no such place in the model; did you mean 'fc2' or 'fc1'\? Places: fc1, relu"),
        (["spare"], r"cut = 'spare': that module is not called in the model's forward"),
        (["fc2", "fc1"], r"not in the order of execution, expected \['fc1', 'fc2'\]"),
        (["fc1", "fc1"], r"'fc1' is there twice"),
        (["add"], r"nothing is left to compute for stage 1, after 'add'"),
        ("fc1", r"cuts = 'fc1': expected a list of places, such as \['fc1'\]"),
    ],
)
def test_cuts_that_make_no_sense(cuts, message):
    with pytest.raises(CutError, match=message):
        partition(Functional(), X, cuts)


def test_a_place_inside_a_unit():
    model = chain(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Linear(4, 2))
    with pytest.raises(CutError, match=r"cut = '0.linear1': '0' is one unit and cannot be cut inside"):
        partition(model, torch.randn(2, 3, 4), ["0.linear1"])


def test_transformer_stacks_can_be_cut_between_layers(bench):
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)
    model = chain(nn.TransformerEncoder(layer, 3, norm=nn.LayerNorm(4)), nn.Flatten(), nn.Linear(12, 3)).double()
    parts = partition(model, torch.randn(1, 3, 4).double(), ["0.layers.0", "0.layers.1"])
    assert [stage.inputs[0].shape for stage in parts.stages] == [(3, 4)] * 3
    batch = [(torch.randn(4, 3, 4).double(), torch.tensor([0, 1, 2, 0]))]
    whole, divided = bench.train_whole(model, batch), bench.train_split(parts, batch, micro_batches=3)
    assert bench.distance(divided.state, whole.state) <= 1e-12
    alone = partition(nn.TransformerEncoder(layer, 2), torch.randn(1, 3, 4), ["layers.0"], method="fx")
    assert len(alone.stages) == 2


def test_stateless_module_called_twice_is_an_ambiguous_place_but_may_straddle_a_cut():
    with pytest.raises(CutError, match=r"'relu': that module is called 2 times; choose one of relu@0, relu@1"):
        partition(Twice(), X, ["relu"])
    front, tail = partition(Twice(), X, ["relu@0"]).stages
    assert front.outputs[0].name == "relu"
    assert tail.parameters == ("end.weight", "end.bias")


def test_tied_weights_across_a_cut_are_refused_by_both_names():
    with pytest.raises(CutError, match=r"'decode.weight' and 'encode.weight' are the same weights"):
        partition(Tied(), X, ["middle"])
    with pytest.raises(CutError, match=r"'decode\..*' and 'encode\..*' are the same weights"):
        partition(Tied(shared_module=True), X, ["middle"])


@pytest.mark.parametrize("shared_module", [False, True])
def test_tied_weights_within_a_stage_stay_tied(bench, shared_module):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.tied = nn.Linear(4, 4), Tied(shared_module)

        def forward(self, x):
            return self.tied(self.head(x))

    model = Wrapped().double()
    parts = partition(model, X.double(), ["head"])
    batches = [(X.double(), torch.tensor([0, 1, 2]))] * 3
    whole, divided = bench.train_whole(model, batches), bench.train_split(parts, batches, micro_batches=2)
    assert parts.unused == ()
    assert bench.distance(divided.state, whole.state) <= 1e-12
    replica = Replica(parts.stages[1], bench.sgd)
    replica.load(replica.state(), reset_optimizer=True)
    if not shared_module:
        assert replica.module.tied.encode.weight is replica.module.tied.decode.weight
    assert torch.equal(divided.state["tied.encode.weight"], divided.state["tied.decode.weight"])


def test_weight_used_functionally_on_both_sides_is_refused():
    class Reused(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return F.linear(self.b(self.a(x)), self.a.weight)

    with pytest.raises(CutError, match=r"'a.weight' is used by stage 0 and again by stage 1 \(in 'linear'\)"):
        partition(Reused(), X, ["a"])


def test_frozen_parameters_stay_frozen(bench):
    model = chain(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    model[0].requires_grad_(False)
    parts = partition(model, X.double(), ["1"])
    assert not parts.stages[0].outputs[0].requires_grad
    batches = [(X.double(), torch.tensor([0, 1, 2]))] * 2
    whole, divided = bench.train_whole(model, batches), bench.train_split(parts, batches, micro_batches=2)
    assert torch.equal(divided.state["0.weight"], model[0].weight)
    assert bench.distance(divided.state, whole.state) <= 1e-12


def test_views_of_memory_written_after_the_cut_are_refused():
    class Aliased(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            y = self.fc(x)
            z = y.view(-1, 2, 2)
            y.mul_(2)
            return z.sum((1, 2)) + y.sum(1)

    with pytest.raises(CutError, match=r"'fc' and 'view' share memory that is changed in place after the cut"):
        partition(Aliased(), X, ["view"])
    assert next(cut.place for cut in possible_cuts(Aliased(), X)) == "fc"


def test_value_without_a_single_batch_dimension_cannot_cross():
    class Similarity(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            y = self.fc(x)
            return torch.softmax(y @ y.T, 1) @ y

    with pytest.raises(CutError, match=r"'matmul' has shape \(2, 2\) for 2 samples and \(3, 3\) for 3"):
        partition(Similarity(), X, ["matmul"])
    assert "matmul" not in [cut.place for cut in possible_cuts(Similarity(), X)]


class Guarded(nn.Module):
    """A symbolic trace sees neither the `no_grad` nor the count."""

    def __init__(self):
        super().__init__()
        self.fixed, self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        self.calls += 1
        with torch.no_grad():
            x = self.fixed(x)
        return self.head(torch.relu(self.body(x)))


def test_a_trace_with_other_gradients_or_buffers_is_never_used(bench):
    with pytest.raises(CutError, match=r"torch\.fx: the trace gives other buffers than the model itself"):
        partition(Guarded(), X, ["body"], method="fx")
    model, batches = Guarded().double(), [(X.double(), torch.tensor([0, 1, 2]))] * 2
    whole = bench.train_whole(model, batches)
    for cut in ("body", "relu"):
        divided = bench.train_split(partition(model, X[:1].double(), [cut]), batches, micro_batches=1)
        assert divided.state["calls"] == 2
        assert torch.equal(divided.state["fixed.weight"], model.fixed.weight)
        assert bench.distance(divided.state, whole.state) <= 1e-12


def test_random_numbers_drawn_while_tracing_are_never_frozen_in(bench):
    class Jitter(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.fc(x) * torch.rand(4))

    with pytest.raises(CutError, match="draws random numbers that depend on no input"):
        partition(Jitter(), X, ["fc"], method="fx")
    tail = Replica(partition(Jitter(), X, ["fc"]).stages[1], bench.sgd)
    first, other = (tail.forward({tail.stage.inputs[0].name: X}, seed=seed)[0]["output"] for seed in (1, 2))
    assert not torch.equal(first, other)


@pytest.mark.parametrize("cuts", [[], ["0"]])
def test_shape_probe_names_the_layer(cuts):
    model = chain(nn.Conv2d(1, 2, 3), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(18, 10))
    partition(model, torch.zeros(1, 1, 8, 8), cuts)
    with pytest.raises(ShapeError, match=r"layer '3' \(Linear\) fails .*given \(2, 50\).*mat1 and mat2 shapes"):
        partition(model, torch.zeros(1, 1, 12, 12), cuts)


def test_shape_probe_names_the_line_of_functional_code():
    class View(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(x).view(-1, 7)

    with pytest.raises(ShapeError, match=r"the model fails .*given \(2, 4\) in `return self.fc\(x\).view\(-1, 7\)`"):
        partition(View(), X, ["fc"])


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ((X, X), "example input has 2 tensors, but the model's forward takes 1"),
        ({"y": X}, "."),
        (torch.tensor(1.0), "expected a batch dimension first"),
        (torch.zeros(0, 4), "expected a batch dimension first"),
        ((), "example input is empty"),
    ],
)
def test_examples_that_cannot_be_used(example, message):
    with pytest.raises(SplitflError, match=message):
        partition(Functional(), example, ["fc1"])


def test_inputs_are_bound_as_in_the_example(bench):
    both = bench.partition_of("two-inputs", ("left",))
    assert list(both.bind((X, X))) == ["first", "second"]
    with pytest.raises(CutError, match="model input has 1 tensors, expected 2"):
        both.bind(X)
    named = bench.partition_of("keyword-inputs", ("left",))
    with pytest.raises(CutError, match=r"expected \['first', 'second'\]"):
        named.bind({"first": X})


def test_export_takes_over_where_fx_cannot_follow(bench):
    case = bench.zoo["branching"]
    with pytest.raises(CutError, match=r"cannot be traced, so it cannot be cut .*; torch.fx: "):
        partition(case.model(), case.batch(2)[0], ["first"], method="fx")
    parts = bench.partition_of("branching", ("first", "second"))
    assert [stage.parameters for stage in parts.stages] == [
        ("first.weight", "first.bias"),
        ("second.weight", "second.bias"),
        ("head.weight", "head.bias"),
    ]
    whole, keyword = bench.train_whole, bench.zoo["keyword-inputs"]
    batches = [keyword.batch(5)]
    exported = partition(keyword.model(), keyword.batch(1)[0], ["left"], method="export")
    divided = bench.train_split(exported, batches, micro_batches=2)
    assert bench.distance(divided.state, whole(keyword.model(), batches).state) <= 1e-12


def test_every_model_can_be_exported_too(bench):
    for name in ("mlp", "cnn", "residual", "attention", "two-inputs", "tokens"):
        case = bench.zoo[name]
        places = [cut.place for cut in possible_cuts(case.model(), case.batch(1)[0], method="export")]
        cuts = [places[len(places) // 3], places[2 * len(places) // 3]]
        parts = partition(case.model(), case.batch(1)[0], cuts, method="export")
        batches = [case.batch(5, seed=step) for step in range(2)]
        divided = bench.train_split(parts, batches, micro_batches=3)
        assert bench.distance(divided.state, bench.train_whole(case.model(), batches).state) <= 1e-12, (name, cuts)


def test_unknown_way_of_tracing():
    with pytest.raises(CutError, match="method='jit': expected 'auto', 'fx' or 'export'"):
        partition(Functional(), X, ["fc1"], method="jit")


def test_original_and_its_mode_are_left_alone():
    model = Functional().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    parts = partition(model, X, ["fc1"])
    assert not model.training
    assert parts.stages[0].module.training
    assert set(vars(model)) == set(vars(Functional()))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
