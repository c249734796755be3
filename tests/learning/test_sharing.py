"""What travels and what stays, by the type of a module and never by its name."""

import re

import pytest
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from shared.errors import FaultError
from shared.exchange.records.tensors import TensorList, TensorShape
from shared.learning import methods
from shared.learning.combine import checked_groups
from shared.learning.methods import method_names, open_method
from shared.learning.methods.contract import Groups, Method
from shared.learning.models.encoders import ENCODERS
from shared.learning.sharing import build_network, require_declared, sharing, staying
from shared.learning.tasks import TASK_NAMES, task_named

OPTIONS = {
    "dr_staging": {"encoder": "small"},
    "image_classification": {"encoder": "small"},
    "octa_segmentation": {"widths": (4, 8)},
    "segmentation": {"widths": (4, 8)},
    "rdr_classification": {"encoder": "plain", "hidden": (8,)},
    "fundus_disease": {"encoder": "plain", "hidden": (8, 8)},
    "spectrograms": {"encoder": "small"},
    "time_series": {"channels": ("x", "y")},
}
WITH_BATCH_NORM = (
    "dr_staging",
    "image_classification",
    "octa_segmentation",
    "segmentation",
    "spectrograms",
    "time_series",
)
WHOLE = ("image_classification", "octa_segmentation", "segmentation", "spectrograms", "time_series")
FROZEN_BASE = ("fundus_disease", "rdr_classification")
METHODS = ("fedavg", "fedbn", "feduaa", "mean")
COUNTER = "num_batches_tracked"
LEAKED = ("layer1.0.downsample.1", "layer2.0.downsample.1", "layer3.0.downsample.1", "layer4.0.downsample.1")


def model_of(task, classes=2, **options):
    task = task_named(task)
    return task.build_model(task.options(OPTIONS[task.name] | options), classes, 1)


def parts(task, method, model):
    return sharing(task_named(task), open_method(method, {}), model)


@pytest.fixture(scope="module")
def resnet50():
    return model_of("dr_staging", 5, encoder="resnet50")


def batch_norm_tensors(model):
    """Every tensor of every BatchNorm, its counter apart."""
    return {
        f"{path}.{name}"
        for path, module in model.named_modules()
        if isinstance(module, _BatchNorm)
        for name in module.state_dict()
        if name != COUNTER
    }


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("task", TASK_NAMES)
def test_the_three_parts_are_the_whole_model_without_counters(task, method):
    model = model_of(task)
    found = parts(task, method, model)
    listed = [*found.tensors, *found.start, *found.personal]
    assert len(set(listed)) == len(listed)
    counters = {name for name in model.state_dict() if name.endswith(COUNTER)}
    assert bool(counters) == (task in WITH_BATCH_NORM)
    assert set(listed) | counters == set(model.state_dict())
    assert not set(listed) & counters
    for name, shape in (found.tensors | found.start).items():
        assert shape.shape == list(model.state_dict()[name].shape)
        assert model.state_dict()[name].dtype == torch.float32


@pytest.mark.parametrize("method", ["fedbn", "feduaa"])
@pytest.mark.parametrize("task", WITH_BATCH_NORM)
def test_no_batchnorm_travels_under_fedbn_and_feduaa(task, method):
    model = model_of(task)
    found = parts(task, method, model)
    norms = batch_norm_tensors(model)
    assert not norms & set(found.tensors)
    assert norms == set(found.start) | (norms & set(found.personal))
    assert any(name.endswith("running_var") for name in found.start)


@pytest.mark.parametrize("method", ["mean", "fedavg"])
@pytest.mark.parametrize("task", WITH_BATCH_NORM)
def test_batchnorm_travels_with_its_statistics_under_the_mean_and_fedavg(task, method):
    model = model_of(task)
    found = parts(task, method, model)
    assert found.start == {}
    outside_head = {name for name in batch_norm_tensors(model) if not name.startswith("head.")}
    assert outside_head <= set(found.tensors)
    assert any(name.endswith("running_mean") for name in found.tensors)


@pytest.mark.parametrize("method", ["fedbn", "feduaa"])
def test_a_rule_by_name_would_leak_five_batchnorms_of_the_published_network_and_ours_leaks_none(resnet50, method):
    """torchvision calls the BatchNorm of a shortcut ``downsample.1``; "bn" is nowhere in it, nor in the head's name."""
    norms = batch_norm_tensors(resnet50)
    found = parts("dr_staging", method, resnet50)
    in_encoder = {name for name in norms if name.startswith("encoder.")}
    assert len(in_encoder) == 53 * 4  # weight, bias and two statistics each
    assert set(found.start) == in_encoder
    assert not in_encoder & set(found.tensors)
    by_name = {name for name in in_encoder if "bn" not in name}
    leaked = {f"encoder.{path}.{name}" for path in LEAKED for name in ("weight", "bias", "running_mean", "running_var")}
    assert by_name == leaked
    fifth = {name for name in norms - in_encoder if "bn" not in name}
    assert fifth == {f"head.norm.{name}" for name in ("weight", "bias", "running_mean", "running_var")}
    assert fifth < set(found.personal)


@pytest.mark.parametrize("encoder", [name for name in ENCODERS if name != "resnet50"])
def test_no_batchnorm_of_any_encoder_travels_under_feduaa(encoder):
    model = model_of("dr_staging", encoder=encoder)
    found = parts("dr_staging", "feduaa", model)
    assert set(found.start) == {name for name in batch_norm_tensors(model) if name.startswith("encoder.")}


@pytest.mark.parametrize("head", ["released", "linear"])
@pytest.mark.parametrize("method", METHODS)
def test_the_head_never_travels_and_what_travels_does_not_depend_on_the_grades(method, head):
    four, six = (model_of("dr_staging", classes, head=head) for classes in (4, 6))
    found = parts("dr_staging", method, four)
    in_head = {name for name in four.state_dict() if name.startswith("head.") and not name.endswith(COUNTER)}
    assert set(found.personal) == in_head
    assert {"head.classify.weight", "head.classify.bias"} <= in_head
    assert not any(name.startswith("head") for name in (*found.tensors, *found.start))
    assert found == parts("dr_staging", method, six)


@pytest.mark.parametrize("method", METHODS)
def test_what_stays_at_a_site_has_the_sites_own_shapes(method):
    for classes in (4, 6):
        model = model_of("dr_staging", classes)
        found = parts("dr_staging", method, model)
        stays = staying(found, model).tensors
        assert set(stays) == set(found.start) | set(found.personal)
        assert stays["head.classify.weight"].shape == [classes, 512]
        assert stays["head.classify.bias"].shape == [classes]
        assert stays["head.norm.running_mean"].shape == [512]


def test_a_whole_model_travels_only_where_nothing_stays():
    whole = {
        (task, method): parts(task, method, model_of(task)).has_whole_model for task in TASK_NAMES for method in METHODS
    }
    assert {pair for pair, is_whole in whole.items() if is_whole} == {
        *((task, method) for task in WHOLE for method in ("mean", "fedavg")),
        *((task, method) for task in FROZEN_BASE for method in METHODS),
    }


@pytest.mark.parametrize("method", [name for name in method_names() if name not in {"fedee", "fedrep", "mdt"}])
@pytest.mark.parametrize("task", FROZEN_BASE)
def test_a_frozen_base_comes_once_and_is_never_a_sites_own(task, method):
    model = model_of(task)
    found = parts(task, method, model)
    base = {name for name in model.state_dict() if name.startswith("encoder.")}
    assert set(found.frozen) == base <= set(found.start)
    assert not base & (set(found.tensors) | set(staying(found, model).tensors))


def test_a_submodule_whose_name_only_begins_like_the_local_part_travels():
    model = model_of("dr_staging")
    model.add_module("headline", torch.nn.Linear(2, 2))
    found = parts("dr_staging", "feduaa", model)
    assert {"headline.weight", "headline.bias"} <= set(found.tensors)


def test_a_task_whose_network_lacks_what_methods_ask_of_it_is_named_before_anything_is_trained(monkeypatch):
    task = task_named("octa_segmentation")
    monkeypatch.setattr(type(task), "build_model", lambda *_: torch.nn.Linear(1, 1))
    options = task.options(OPTIONS[task.name])
    with pytest.raises(FaultError, match=r"gave a network without classes, features, heads \(test_sharing.py, line "):
        build_network(task, open_method("mean", {}), options, 2, run_seed=1)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("at_aggregator", "model"), ("trained", "model"), ("to_site", "My"), ("measured", "a-b"), ("at_site", "")],
)
def test_a_group_that_no_file_can_be_called_by_is_named_before_a_run_begins(kind, name):
    class Odd(Method):
        name = "odd"

        def groups(self, network, sharing):
            return Groups(**{kind: {name: sharing.parameters}})

    task, method = task_named("octa_segmentation"), Odd(Odd.Options())
    said = rf"groups\(\) calls a group '{name}'; a lower-case word is due, and not model \(test_sharing.py, line \d+\)"
    with pytest.raises(FaultError, match=said):
        sharing(task, method, model_of("octa_segmentation"))


DUE = {"velocity": {"w": TensorShape(dtype="F32", shape=[2, 3])}}


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({}, r"local.sent\['velocity'\] no such tensor as w; groups\(\) declares a tensor of shape \(2, 3\)"),
        ({"velocity": {"w": torch.zeros(3, 2)}}, r"a tensor of shape \(3, 2\) as w; .* of shape \(2, 3\)"),
        ({"velocity": {"w": 0.5}}, r"float as w; groups\(\) declares a tensor"),
        (
            {"velocity": {"w": torch.zeros(2, 3), "v": torch.zeros(1)}},
            r"of shape \(1,\) as v; .* declares no such tensor",
        ),
        ({"velocity": {"w": torch.zeros(2, 3)}, "momentum": {}}, r"wrote local.sent\['momentum'\], and groups\(\)"),
    ],
)
def test_what_a_method_makes_and_does_not_declare_is_dropped_nowhere_in_silence(made, said):
    def finish():
        """Stand for a method's."""

    with pytest.raises(FaultError, match=r"^finish\(\) (left in|wrote) .*\(test_sharing.py, line \d+\); ask") as raised:
        require_declared(finish, "local.sent", made, DUE)
    assert re.search(said, str(raised.value))
    made = {"velocity": {"w": torch.zeros(2, 3)}}
    require_declared(finish, "local.sent", made, DUE)
    require_declared(finish, "local.sent", {**made, "momentum": {}}, DUE, also=["momentum"])


def test_a_file_that_no_run_could_name_is_no_method(monkeypatch, tmp_path):
    before = method_names()
    for name in ("MyMethod", "fedavg copy", "mine"):
        (tmp_path / f"{name}.py").write_text("")
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    assert method_names() == tuple(sorted([*before, "mine"]))


def test_what_combine_gives_and_does_not_declare_is_told_before_a_run_begins():
    class Odd(Method):
        name = "odd"

        def combine(self, part):
            return {"model": part.mean() / part.accepted, "seen": part.before()}

    method = Odd(Odd.Options())
    said = r"^combine\(\) gave seen, which groups\(\) declares neither to_site nor at_aggregator \(test_sharing.py"
    with pytest.raises(FaultError, match=said):
        checked_groups(method, Groups())
    declared = Groups(at_aggregator={"seen": TensorList(tensors={})})
    assert checked_groups(method, declared) is declared


@pytest.mark.parametrize("name", method_names())
def test_every_method_combines_what_it_declares(name):
    task, method = task_named("dr_staging"), open_method(name, {})
    network = build_network(task, method, task.options(OPTIONS[task.name]), 3, run_seed=1)
    groups = method.groups(network, sharing(task, method, network))
    assert checked_groups(method, groups) is groups
