"""θ at a site: which model, which images, in which mode it is measured, and what of it may leave."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import load_file, save_file
from torch import nn

from deploy.local.synthetic_fundus import CLINIC, write_graded_site
from shared.errors import ActionRequiredError, RejectedError
from shared.exchange.names import METRICS, RELIABILITY
from shared.exchange.reading import dump_yaml
from shared.exchange.records.answers import Reliability
from shared.exchange.records.run import RoundConfiguration, RunConfiguration
from shared.exchange.tables import read_metrics
from shared.exchange.trust import open_yaml
from shared.learning.compute import EXACT
from shared.learning.data.graded_images import GradedImage
from shared.learning.data.images import SegmentedImage
from shared.learning.losses import dirichlet, evidence
from shared.learning.methods import open_method
from shared.learning.model_files import load_tensors, save_tensors
from shared.learning.objectives import IGNORED, CrossEntropy, Evidential
from shared.learning.reliability import (
    TARGETS_PER_IMAGE,
    MeasuredUncertainty,
    draw_targets,
    image_uncertainty,
    measure_uncertainty,
)
from shared.learning.seeds import seed_for
from shared.learning.sharing import sharing
from shared.learning.tasks import task_named
from shared.learning.uncertainty import youden_threshold
from site_client.configuration import Policy
from site_client.disclosure import reliability
from site_client.train import Files, Trainer
from studies.simulation import open_public
from tests.yaml_texts import in_yaml

GRADING, SEGMENTING = task_named("dr_staging"), task_named("octa_segmentation")
EVIDENTIAL = Evidential(temperature=0.05, kl_weight=0.0)
SMALL = {"encoder": "small", "weights": "random", "image_size": 32}


def graded(count=12, grades=3):
    rng = np.random.default_rng(count)
    return [
        GradedImage(f"eye-{n}", rng.integers(0, 256, (32, 32, 3), dtype=np.uint8), n % grades) for n in range(count)
    ]


def segmented(*sizes):
    rng = np.random.default_rng(1)
    return [
        SegmentedImage(
            f"eye-{n}", rng.random((side, side), dtype=np.float32), rng.integers(0, 2, (side, side), np.uint8)
        )
        for n, side in enumerate(sizes)
    ]


def grading_model(head="released", classes=3):
    """With statistics that are no batch's, so that the two modes answer differently."""
    model = GRADING.build_model(GRADING.options(SMALL | {"head": head}), classes, 1)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if name.endswith("running_mean"):
                value.add_(0.3)
    return model


class Certain(nn.Module):
    """Has more evidence of class 1 the brighter a pixel is."""

    def __init__(self):
        super().__init__()
        self.classes = 2
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, images):
        return torch.cat([torch.zeros_like(images), 4 * images - 2], dim=1)  # (B, 1, H, W) -> (B, 2, H, W)


# --- which model, which images, in which mode --------------------------------------------------------------------


@pytest.mark.parametrize("mode", [True, False], ids=["training", "evaluating"])
def test_the_uncertainty_is_that_of_eval_mode_and_change_nothing(mode):
    """In train mode a BatchNorm would answer by the batch, and move."""
    model, made = grading_model().train(mode), graded()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = measure_uncertainty(GRADING, model, made, EVIDENTIAL, 1)
    assert all(module.training is mode for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())

    inputs, targets = GRADING.collate(made)
    with torch.no_grad():
        by_hand = model.eval()(inputs).double()
        in_train_mode = model.train()(inputs).double()
    opinion = dirichlet(evidence(by_hand))
    assert found.uncertainty.tolist() == pytest.approx(opinion.uncertainty.tolist(), abs=1e-12)
    assert found.wrong.tolist() == (opinion.belief.argmax(dim=1) != targets).tolist()
    assert not np.allclose(found.uncertainty, dirichlet(evidence(in_train_mode)).uncertainty.numpy(), atol=1e-4)


def test_the_uncertainty_is_that_of_the_images_as_they_are(monkeypatch):
    def vary(*arguments):
        raise AssertionError("an image was varied")

    monkeypatch.setattr(type(GRADING), "vary", vary)
    assert len(measure_uncertainty(GRADING, grading_model(), graded(), EVIDENTIAL, 1).wrong) == 12


def test_the_uncertainty_of_a_classification_does_not_depend_on_the_seed_nor_on_what_was_drawn_before():
    model, made = grading_model(), graded()
    one = measure_uncertainty(GRADING, model, made, EVIDENTIAL, 1)
    torch.manual_seed(8)
    other = measure_uncertainty(GRADING, model, made, EVIDENTIAL, 2)
    assert (one.uncertainty == other.uncertainty).all()
    assert (one.wrong == other.wrong).all()


def test_no_images_have_no_uncertainty():
    with pytest.raises(ValueError, match="no images"):
        measure_uncertainty(SEGMENTING, Certain(), [], EVIDENTIAL, 1)
    with pytest.raises(ValueError):
        measure_uncertainty(GRADING, grading_model(), [], EVIDENTIAL, 1)


def test_a_small_segmentation_by_hand():
    """The pixels that are drawn, in order, and the entropy of each as a share of log 2."""
    image = np.zeros((32, 32), np.float32)
    image[0, :3] = [1.0, 0.5, 0.25]
    mask = np.zeros((32, 32), np.uint8)
    mask[0, 2] = 1
    drawn = draw_targets(mask.reshape(-1).astype(np.int64), seed_for(5, "targets", "eye")).tolist()
    found = measure_uncertainty(SEGMENTING, Certain(), [SegmentedImage("eye", image, mask)], CrossEntropy(), 5)
    assert len(found.wrong) == len(drawn) == TARGETS_PER_IMAGE
    for u, wrong, index in zip(found.uncertainty, found.wrong, drawn, strict=True):
        level, truth = image.reshape(-1)[index], mask.reshape(-1)[index]
        p = 1 / (1 + math.exp(-(4 * level - 2)))
        entropy = -(p * math.log(p) + (1 - p) * math.log(1 - p)) / math.log(2)
        assert u == pytest.approx(entropy, rel=1e-6)
        assert wrong == ((4 * level - 2 > 0) != truth)


def test_of_a_segmentation_256_pixels_an_image_are_drawn_by_the_seed():
    model, made = Certain(), segmented(32, 40, 33)
    one, same, other = (measure_uncertainty(SEGMENTING, model, made, EVIDENTIAL, seed) for seed in (1, 1, 2))
    assert len(one.uncertainty) == 3 * 256
    assert (one.uncertainty == same.uncertainty).all()
    assert not (one.uncertainty == other.uncertainty).all()


def test_pixels_are_drawn_without_repeats_in_order_and_never_where_an_image_was_filled_up():
    _, targets = SEGMENTING.collate(segmented(33))  # filled up to 48
    flat = targets.reshape(-1).numpy()
    assert (flat == IGNORED).any()
    for seed in range(20):
        drawn = draw_targets(flat, seed).numpy()
        assert len(drawn) == 256
        assert (np.diff(drawn) > 0).all()
        assert not (flat[drawn] == IGNORED).any()
    few = np.full(1000, IGNORED)
    few[[3, 500, 999]] = [0, 1, 1]
    assert draw_targets(few, 1).tolist() == [3, 500, 999]
    assert draw_targets(np.array(2), 1).tolist() == [0]


def test_a_model_that_has_diverged_has_an_uncertainty_that_is_a_number():
    model = grading_model()
    with torch.no_grad():
        model.head.classify.weight.fill_(torch.nan)
    found = measure_uncertainty(GRADING, model, graded(), EVIDENTIAL, 1)
    assert ((found.uncertainty > 0) & (found.uncertainty <= 1)).all()
    assert 0 < youden_threshold(found.uncertainty, found.wrong).theta <= 1


# --- what may leave ----------------------------------------------------------------------------------------------


def record(images, minimum=5, *, count=None, wrong=2):
    count = count or images
    uncertainty = np.linspace(0.1234567, 0.9876543, count)
    marks = np.arange(count) >= count - wrong
    told = reliability(MeasuredUncertainty(uncertainty, marks, images), Policy(minimum_count=minimum))
    return open_yaml(dump_yaml(told), Reliability, RELIABILITY), uncertainty


def test_over_enough_images_everything_is_told_and_quantiles_in_hundredths():
    told, uncertainty = record(50, wrong=10)
    assert (told.theta, told.status) == (round(uncertainty[40], 4), "measured") != (uncertainty[40], "measured")
    assert (told.n, told.n_wrong, told.auroc) == ("50", "10", None)
    assert record(50, 1, wrong=10)[0].auroc == 1.0
    assert record(49, wrong=10)[0].quantiles is None  # a tenth is fewer than five images
    shares = told.quantiles.model_dump()
    assert shares == {f"q{q}": round(float(np.quantile(uncertainty, q / 100)), 2) for q in (10, 25, 50, 75, 90)}
    assert not set(shares.values()) & set(uncertainty.tolist())


@pytest.mark.parametrize(("images", "minimum"), [(4, 5), (9, 10), (1, 2)])
def test_over_fewer_images_than_the_policy_wants_only_theta_is_told(images, minimum):
    told, _ = record(images, minimum, wrong=1)
    assert (told.n, told.n_wrong) == (f"fewer than {minimum}", None)
    assert (told.auroc, told.quantiles) == (None, None)
    assert 0 < told.theta <= 1


def test_many_pixels_of_few_images_are_few_images():
    told, _ = record(4, count=4 * TARGETS_PER_IMAGE, wrong=300)
    assert (told.n, told.n_wrong, told.auroc, told.quantiles) == ("fewer than 5", None, None, None)


@pytest.mark.parametrize("wrong", [4, 36])
def test_few_wrong_or_few_right_predictions_are_not_counted_nor_ranked(wrong):
    told, _ = record(40, wrong=wrong)
    assert (told.n, told.n_wrong, told.auroc) == ("40", None, None)


@pytest.mark.parametrize(("wrong", "status"), [(0, "all right"), (8, "all wrong")])
def test_where_nothing_was_measured_the_reason_is_told(wrong, status):
    told, _ = record(8, wrong=wrong)
    assert (told.theta, told.status, told.auroc) == (0.5, status, None)


# --- a site's whole round ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A hospital of 30 photographs in 4 grades."""
    root = tmp_path_factory.mktemp("hospital")
    write_graded_site(root, style=CLINIC, images=30, size=32, seed=1, grades=4)
    return root


class Round:
    """One site's first round, worked through."""

    def __init__(self, site, home, method="feduaa", epochs=1, **method_options):
        self.run = RunConfiguration(
            run="try",
            task="dr_staging",
            method=method,
            sites=["north"],
            rounds=2,
            task_options=SMALL,
            method_options=method_options,
        )
        model = grading_model(classes=2)
        self.listed = sharing(GRADING, open_method(method, method_options), model)
        self.trainer = Trainer(self.run, self.listed, site, Policy(minimum_training_images=1), EXACT, home / "noise")
        self.dataset = open_public(GRADING, site, self.run, "north")
        save_tensors(model, self.listed.shared, home / "received")
        if self.listed.start:
            save_tensors(model, self.listed.beginning, home / "start")
        self.files = Files(
            received=home / "received",
            state={},
            start=home / "start" if self.listed.start else None,
            personal=None,
            accepted=None,
            trained=home / "trained",
            sent={},
            kept=home / "kept",
        )
        self.configuration = RoundConfiguration(
            round=1,
            epochs=epochs,
            learning_rate=0.05,
            batch_size=6,
            seed=4,
            augmentation={},
        )
        self.work()

    def work(self):
        self.answer = self.trainer.work(self.dataset, self.configuration, self.files, lambda percent: None).tables

    def rows(self):
        return read_metrics(self.answer[METRICS], METRICS)

    def told(self):
        return open_yaml(self.answer[RELIABILITY], Reliability, RELIABILITY)

    def by_hand(self, samples, *, trained=False):
        """θ of the received (or of the trained) model on these images, without the code that is tested."""
        files = self.files
        model = self.trainer.network(4, files.received, files.start, None)
        if trained:
            load_tensors(model, self.trainer.stays(model), files.kept)
            load_tensors(model, self.listed.shared, files.trained)
        inputs, grades = GRADING.collate(samples)
        with torch.no_grad():
            logits = model.eval()(inputs).double()
        u = 4 / (nn.functional.softplus(logits) + 1).sum(dim=1)
        wrong = logits.argmax(dim=1) != grades
        return youden_threshold(u.numpy(), wrong.numpy())


def assert_same(told, threshold):
    assert (told.theta, told.status) == (round(threshold.theta, 4), threshold.status)


@pytest.fixture(scope="module")
def worked(site, tmp_path_factory):
    return Round(site, tmp_path_factory.mktemp("round"))


def test_theta_is_of_the_received_model_before_it_is_trained(worked):
    """Algorithm 1; the published code takes outputs of the epoch itself instead."""
    told = worked.told()
    before = worked.by_hand(worked.dataset.train)
    after = worked.by_hand(worked.dataset.train, trained=True)
    assert before.theta != pytest.approx(after.theta, rel=1e-3)
    assert_same(told, before)
    assert told.n == str(before.predictions)
    assert before.predictions == len(worked.dataset.train) == 18


def test_theta_may_be_measured_on_validation_images(site, worked, tmp_path):
    validated = Round(site, tmp_path, theta_from="validation")
    of_validation = validated.by_hand(validated.dataset.validation)
    assert of_validation.theta != worked.told().theta
    assert_same(validated.told(), of_validation)
    assert validated.told().n == "6"


def test_measuring_theta_changes_nothing_of_the_training(site, tmp_path):
    """FedUAA's θ beside FedBN with the same objective: the same tensors, bit by bit."""
    written = []
    for method in ("feduaa", "fedbn"):
        (tmp_path / method).mkdir()
        files = Round(site, tmp_path / method, method, objective="evidential").files
        written.append((files.trained.read_bytes(), files.kept.read_bytes()))
    assert written[0] == written[1]


def test_a_round_without_epochs_tells_theta_and_writes_no_model(site, worked, tmp_path):
    closing = Round(site, tmp_path, epochs=0)
    assert closing.told() == worked.told()
    assert not closing.files.trained.exists()
    assert not closing.files.kept.exists()


@pytest.mark.parametrize("method", ["mean", "fedavg", "fedbn"])
def test_other_methods_tell_no_theta(site, tmp_path, method):
    assert set(Round(site, tmp_path, method, epochs=0).answer) == {METRICS}


# --- the record --------------------------------------------------------------------------------------------------

GOOD = {
    "theta": 0.4,
    "status": "measured",
    "n": "40",
    "n_wrong": "fewer than 5",
    "auroc": 0.7,
    "quantiles": {"q10": 0.1, "q25": 0.2, "q50": 0.3, "q75": 0.4, "q90": 0.5},
}


def opened(**changes):
    content = {key: value for key, value in (GOOD | changes).items() if value != "missing"}
    return open_yaml(in_yaml(content), Reliability, RELIABILITY)


def test_a_well_formed_record_is_taken():
    assert opened().theta == 0.4
    assert opened(theta=1.0).theta == 1.0
    assert opened(theta=0.5, status="all right", auroc=None, quantiles=None).theta == 0.5


@pytest.mark.parametrize(
    "changes",
    [
        *({"theta": theta} for theta in (0, 0.0, -0.1, 1.0000001, 1.5, math.nan, math.inf, -math.inf)),
        *({"theta": theta} for theta in ("missing", None, "0.5", True, [0.5])),
        *({"status": status} for status in ("all right", "all wrong", "no separation", "unsure", "missing")),
        {"auroc": 1.01},
        {"auroc": math.nan},
        {"auroc": "missing"},
        {"quantiles": "missing"},
        {"quantiles": {"q50": 0.5}},
        {"quantiles": GOOD["quantiles"] | {"q90": math.inf}},
        {"quantiles": GOOD["quantiles"] | {"q99": 0.9}},
        {"n": 40},
        {"n": "about 40"},
        {"n_wrong": "-1"},
        {"n_wrong": "41"},
        {"n_wrong": "40"},
        {"n_wrong": "0"},
        {"n_wrong": "999999999", "n": "10"},
        {"n": "fewer than 5"},
        {"n": "fewer than 5", "n_wrong": None},
        {"status": "all right", "theta": 0.5, "n": "10", "n_wrong": "10", "auroc": None},
        {"status": "all right", "theta": 0.5},
        {"status": "all wrong", "theta": 0.5, "n_wrong": "39", "auroc": None},
        {"status": "no separation", "theta": 0.5, "n_wrong": "40"},
        {"auroc": -0.0},
        {"quantiles": GOOD["quantiles"] | {"q10": 0.123456789012345}},
        {"quantiles": GOOD["quantiles"] | {"q25": 0.05}},
        {"uncertainties": [0.1, 0.2]},
    ],
    ids=str,
)
def test_any_other_record_is_refused(changes):
    with pytest.raises(RejectedError, match=RELIABILITY):
        opened(**changes)


@settings(max_examples=200)
@given(
    answers=st.lists(st.tuples(st.floats(0, 1) | st.sampled_from([-0.0, 0.5]), st.booleans()), min_size=1, max_size=80),
    images=st.integers(1, 80),
    minimum=st.sampled_from([1, 2, 5]),
)
def test_what_a_site_tells_of_any_answers_is_taken(answers, images, minimum):
    found = MeasuredUncertainty(np.array([u for u, _ in answers]), np.array([wrong for _, wrong in answers]), images)
    told = reliability(found, Policy(minimum_count=minimum))
    assert open_yaml(dump_yaml(told), Reliability, RELIABILITY) == told


def test_a_threshold_is_told_with_four_decimals_and_is_never_0():
    """θ travels as YAML text of four decimals, above 0 however small it is."""
    for theta, rounded in ((1 / 3, 0.3333), (5e-324, 0.0001), (1 - 2**-53, 1.0), (0.00016, 0.0002), (0.5, 0.5)):
        found = MeasuredUncertainty(np.array([0.0, theta]), np.array([False, True]), 2)
        told = dump_yaml(reliability(found, Policy()))
        assert open_yaml(told, Reliability, RELIABILITY).theta == rounded


@pytest.mark.parametrize("theta", ["!!bool x", "!!timestamp x", '!!int ""', "!!python/object:os.system x", "!own 0.5"])
def test_a_tag_is_refused_before_anything_is_made_of_it(theta):
    content = f"theta: {theta}\nstatus: measured\nn: '8'\nn_wrong: null\nauroc: null\nquantiles: null\n".encode()
    with pytest.raises(RejectedError, match="uses a tag"):
        open_yaml(content, Reliability, RELIABILITY)


def test_what_has_diverged_is_not_kept(site, tmp_path):
    """A received model that overflows spoils a round, not all that come after it."""
    one = Round(site, tmp_path, method="fedbn")
    assert one.files.kept.exists()
    one.files.kept.unlink()
    state = load_file(one.files.received)
    save_file({name: tensor * np.float32(1e30) for name, tensor in state.items()}, one.files.received)
    one.work()
    assert not one.files.kept.exists()


def test_grades_that_changed_since_are_one_sentence(site, tmp_path):
    one = Round(site, tmp_path, method="fedbn")
    with pytest.raises(ActionRequiredError, match="were this site's grades changed since"):
        one.trainer.network(5, one.files.received, one.files.start, one.files.kept)


def test_a_model_is_asked_about_out_of_distribution_images_and_only_the_comparison_leaves(site, tmp_path):
    ood = tmp_path / "out_of_distribution"
    ood.mkdir()
    noise = np.random.default_rng(1)
    for number in range(8):
        Image.fromarray(noise.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(ood / f"{number}.png")
    one = Round(site, tmp_path)
    assert all("ood_auroc" not in row.scores for row in one.rows())
    one.trainer = replace(one.trainer, ood=ood)
    one.dataset = replace(one.dataset, ood=GRADING.open_unlabelled(ood, one.trainer.options))
    one.work()
    told = {(row.epoch, row.split): row.scores["ood_auroc"] for row in one.rows()}
    model = one.trainer.network(4, one.files.received, one.files.start, None)
    inside, outside = (
        image_uncertainty(GRADING, model, samples, Evidential(0.05, 1))
        for samples in (one.dataset.test, one.dataset.ood)
    )
    assert (len(inside), len(outside)) == (len(one.dataset.test), 8)
    by_hand = np.mean([(o > i) + 0.5 * (o == i) for o in outside for i in inside])
    assert told.pop((0, "test")) == pytest.approx(by_hand)
    assert set(told.values()) == {None}
