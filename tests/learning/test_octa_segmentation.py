"""The task: options, data, batches, training, evaluation, and that nothing but the seed decides."""

import random
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from shared.errors import ConfigurationError, DataError, Stopped
from shared.exchange.records.run import Privacy
from shared.learning.data.augmentation import Augmentation, Crops, crop
from shared.learning.data.images import SegmentedImage
from shared.learning.data.splits import SplitPlan
from shared.learning.methods import open_method
from shared.learning.methods.contract import Local
from shared.learning.objectives import IGNORED, CrossEntropy, Evidential, image_losses
from shared.learning.optimizers import new_optimizer
from shared.learning.requirements import requirements
from shared.learning.run_checks import check_together
from shared.learning.tasks import TASK_NAMES, task_named
from shared.learning.tasks.contract import open_anew
from shared.learning.tasks.octa_segmentation.task import OctaSegmentation
from shared.learning.tasks.octa_segmentation.terms import OctaOptions
from shared.learning.training import Epoch, measure_statistics, plan_batches, view_of
from shared.learning.training import evaluate as evaluate_with
from shared.learning.training import train_epoch as train_with
from studies.simulation import run_rounds
from tests.federation.running import run_configuration, staging_run, write_data
from tests.learning.small_sites import write_small

TASK = OctaSegmentation()
PLAIN = CrossEntropy()
SMALL = OctaOptions(widths=(4, 8), dropout=0.2)


def samples(count=4, size=32):
    """Bright bands on a dark, grainy ground."""
    rng = np.random.default_rng(count)
    made = []
    for number in range(count):
        mask = np.zeros((size, size), np.uint8)
        mask[5 + number : 12 + number] = 1
        image = np.clip(0.2 + 0.6 * mask + rng.normal(0, 0.1, mask.shape), 0, 1).astype(np.float32)
        made.append(SegmentedImage(f"s{number}", image, mask))
    return made


def epoch(seed=1, rate=0.05, batch_size=4, copies=1):
    return Epoch(rate, batch_size, seed, Augmentation(copies=copies))


def quietly(done, total):
    """Watches nothing."""


def train_epoch(model, optimizer, images, one, on_batch, *, objective=PLAIN):
    plain = open_method("mean", {})
    return train_with(TASK, plain, Local(model), optimizer, images, epoch=one, objective=objective, on_batch=on_batch)


def evaluate(model, images, objective=PLAIN):
    return evaluate_with(TASK, model, images, objective)


def trained(seed=1, rounds=1, **changes):
    model = TASK.build_model(SMALL, 2, seed)
    optimizer = new_optimizer(model, SMALL, 0.05)
    for index in range(rounds):
        train_epoch(model, optimizer, samples(), epoch(seed + index, **changes), quietly)
    return model


def same_weights(one, other):
    first, second = one.state_dict(), other.state_dict()
    return all(torch.equal(first[name], second[name]) for name in first)


def test_tasks_by_name():
    assert {name: task_named(name).name for name in TASK_NAMES} == {name: name for name in TASK_NAMES}
    assert {"dr_staging", "octa_segmentation"} <= set(TASK_NAMES)
    with pytest.raises(ConfigurationError, match=r"no 'oct'; the tasks are: .*octa_segmentation"):
        task_named("oct")


def test_torch_is_imported_only_for_a_task():
    code = "import sys, shared.learning.tasks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_options_default_to_the_paper():
    """Lo et al. 2021: widths 32 to 512, dropout 0.5, images as they are."""
    assert TASK.options({}) == OctaOptions(image_size=None, widths=(32, 64, 128, 256, 512), dropout=0.5)


def test_every_wrong_option_is_named_at_once():
    with pytest.raises(ConfigurationError) as caught:
        TASK.options(
            {"image_size": 8, "widths": [8, 0], "dropout": 1.0, "group_pattern": "^(.*)_left$", "colour": True}
        )
    for sentence in (
        "image_size: must be 32 or more",
        "widths: each width must be between 1 and 2048",
        "dropout: must be less than 1",
        "group_pattern: is not a known key",
        "colour: is not a known key; remove it or use one of optimizer, momentum, weight_decay, max_grad_norm",
    ):
        assert sentence in str(caught.value)
    assert len(caught.value.problems) == 5


def test_a_site_is_read_and_divided(tmp_path):
    write_small("octa_segmentation", tmp_path, images=10, size=48)
    options = TASK.options({"image_size": 40})
    dataset = open_anew(TASK, tmp_path, options, SplitPlan(), 1, secret=b"")
    assert [len(part) for part in (dataset.train, dataset.validation, dataset.test)] == [6, 2, 2]
    first = dataset.train[0]
    assert first.image.shape == first.mask.shape == (40, 40)
    assert (first.image.dtype, first.mask.dtype) == (np.float32, np.uint8)
    assert len(TASK.open_images(tmp_path, options).samples) == 10
    (tmp_path / "masks" / "wide-003.png").unlink()
    with pytest.raises(DataError, match=r"images/wide-003.png: has no mask"):
        open_anew(TASK, tmp_path, options, SplitPlan(), 1, secret=b"")


CROPS = Augmentation(copies=1, pixel_dropout=(0, 0), crops=Crops(size=32, per_image=3, foreground=1.0))


def test_a_model_is_trained_on_crops_and_evaluated_on_whole_images(monkeypatch):
    made = samples(2, size=64)
    cropped = Epoch(0.05, 4, 1, CROPS)
    views = [view for batch in plan_batches(made, cropped) for view in batch]
    assert sorted((sample.id, view) for sample, view in views) == [(f"s{n}", view) for n in (0, 1) for view in range(6)]
    assert [len(batch) for batch in plan_batches(made, cropped)] == [4, 4, 4]
    parts = [view_of(TASK, made[0], view, cropped) for view in range(6)]
    assert {part.mask.shape for part in parts} == {part.image.shape for part in parts} == {(32, 32)}
    assert all(part.mask.any() for part in parts[:3])  # each is centred on the foreground, as far as there is room
    whole = np.lib.stride_tricks.sliding_window_view(made[0].image, (32, 32))
    assert all((whole == part.image).all(axis=(2, 3)).any() for part in parts[:3])  # of the original, as it is
    assert not any((whole == part.image).all(axis=(2, 3)).any() for part in parts[3:])
    seen = []
    collate = OctaSegmentation.collate
    monkeypatch.setattr(OctaSegmentation, "collate", lambda *each: seen.append(collate(*each)) or seen[-1])
    train_epoch(TASK.build_model(SMALL, 2, 1), new_optimizer(nn.Linear(1, 1), SMALL, 0.1), made, cropped, quietly)
    assert [inputs.shape[-2:] for inputs, _ in seen] == [(32, 32)] * 3 + [(64, 64)] * 2  # the last for BatchNorm


@given(
    sides=st.tuples(st.integers(8, 70), st.integers(8, 70)),
    foreground=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_a_crop_lies_in_its_image_and_the_seed_alone_decides_it(sides, foreground, seed):
    image = np.arange(sides[0] * sides[1], dtype=np.float32).reshape(sides)
    mask = (np.random.default_rng(seed).random(sides) < 0.01).astype(np.uint8)
    crops = Crops(size=32, foreground=foreground)
    part, of_mask = crop(image, mask, crops, seed)
    assert part.shape == of_mask.shape == (min(32, sides[0]), min(32, sides[1]))
    top, left = divmod(int(part[0, 0]), sides[1])
    found = np.s_[top : top + part.shape[0], left : left + part.shape[1]]
    assert np.array_equal(part, image[found]) and np.array_equal(of_mask, mask[found])
    assert not mask.any() or foreground < 1 or of_mask.any()
    assert np.array_equal(part, crop(image, mask, crops, seed)[0])


@given(images=st.integers(1, 2000), copies=st.integers(1, 3), per_epoch=st.integers(1, 1000))
def test_where_images_are_many_each_has_fewer_crops(images, copies, per_epoch):
    crops = Crops(size=32, per_image=24, per_epoch=per_epoch)
    varied = Augmentation(copies=copies, originals=False, crops=crops).for_images(images)
    assert 1 <= varied.crops.per_image <= 24
    assert varied.views * images <= max(per_epoch, copies * images)
    one_more = copies * images * (varied.crops.per_image + 1)
    assert varied.crops.per_image == 24 or one_more > per_epoch


def test_a_site_trains_on_as_many_crops_as_it_may(tmp_path):
    """Its 4 images show so many crops each as all of them may show together."""
    write_data("octa_segmentation", tmp_path, 0, 8, seed=1)
    many, few = {"size": 32, "per_image": 4, "per_epoch": 8}, {"size": 32, "per_image": 2}
    weights = []
    for number, crops in enumerate((many, few)):
        run = run_configuration(sites=["north"], quorum=1, rounds=1, augmentation={"copies": 1, "originals": False})
        run = run.model_copy(update={"augmentation": run.augmentation | {"crops": crops}, "batch_size": 2})
        outcome = run_rounds(run, {"north": tmp_path}, tmp_path / f"home-{number}")
        assert len(outcome.finals["north"].dataset.train) == 4
        assert requirements(run).steps(4) == 4 and requirements(run).steps(20) == (10 if crops is many else 20)
        weights.append(outcome.finals["north"].network().state_dict())
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


def test_crops_are_of_masks_and_count_as_views():
    crops = {"size": 32, "per_image": 4}
    options = {"image_size": 64, "widths": [4, 8]}
    once = {"copies": 1, "originals": False}
    run = run_configuration(task_options=options, augmentation=once | {"crops": crops})
    whole = run_configuration(task_options=options, augmentation=once)
    check_together(run)
    assert requirements(run).views == 4 * requirements(whole).views
    assert requirements(run).memory_bytes < requirements(whole).memory_bytes
    with pytest.raises(ConfigurationError, match=r"crops are parts of images with masks, and dr_staging has none"):
        check_together(staging_run(method="fedbn", augmentation={"crops": crops}))
    privacy = {"target_epsilon": 8, "delta": 0.001, "max_grad_norm": 1.0}
    with pytest.raises(ConfigurationError, match=r"shows each image 4 times in an epoch"):
        check_together(run.model_copy(update={"privacy": Privacy(**privacy)}))


@pytest.mark.parametrize(
    ("refreshes", "most", "measured"), [(True, None, [0, 1, 2]), (True, 2, [0, 2]), (False, None, [0])]
)
def test_batch_norm_is_measured_after_training_if_it_is_to_be(refreshes, most, measured):
    made = samples(3)
    model = TASK.build_model(SMALL, 2, 1)
    asked = replace(epoch(), refreshes=refreshes, refresh_images=most)
    train_epoch(model, new_optimizer(model, SMALL, 0.05), made, asked, quietly)
    as_left = {name: buffer.clone() for name, buffer in model.named_buffers()}
    measure_statistics(TASK, model, [made[number] for number in measured])
    means = [name for name in as_left if name.endswith("running_mean")]
    assert means and all(torch.equal(as_left[name], model.get_buffer(name)) == refreshes for name in means)


def test_batches_hold_every_copy_once_in_an_order_of_the_epoch():
    made = samples(5)
    batches = plan_batches(made, epoch(copies=5, batch_size=4))
    seen = [(sample.id, copy) for batch in batches for sample, copy in batch]
    assert sorted(seen) == sorted((sample.id, copy) for sample in made for copy in range(6))
    assert sorted({len(batch) for batch in batches}) == [3, 4]  # 30 in 8 batches, none of a single image
    other = [(sample.id, copy) for batch in plan_batches(made, epoch(2, copies=5)) for sample, copy in batch]
    assert seen != other
    with pytest.raises(ValueError, match="needs samples"):
        plan_batches([], epoch())


def test_copies_differ_from_each_other_and_between_epochs():
    sample = samples(1)[0]
    views = [view_of(TASK, sample, copy, epoch(seed)).image for seed in (1, 2) for copy in (1, 2)]
    assert all(not np.array_equal(views[one], views[two]) for one in range(4) for two in range(one))
    assert np.array_equal(view_of(TASK, sample, 0, epoch()).image, sample.image)


def test_sizes_are_mixed_by_filling_up_and_filling_counts_for_nothing():
    small, large = samples(1, 32)[0], samples(1, 40)[0]
    images, masks = TASK.collate([small, large])
    assert images.shape == (2, 1, 48, 48)
    assert (masks[0] == IGNORED).sum() == 48 * 48 - 32 * 32
    logits = torch.randn(2, 2, 48, 48)
    loss, terms = image_losses(PLAIN, logits, masks)
    of_image = terms["loss"]
    alone = torch.nn.functional.cross_entropy(logits[:1, :, :32, :32], masks[:1, :32, :32])
    assert of_image[0] == pytest.approx(float(alone), rel=1e-5)
    assert float(loss) == pytest.approx(
        (of_image[0] * 32 * 32 + of_image[1] * 40 * 40).item() / (1024 + 1600), rel=1e-5
    )
    changed = logits.clone()
    changed[0, :, 32:] = 99.0
    assert torch.equal(image_losses(PLAIN, changed, masks)[0], loss)


def test_training_lowers_the_loss():
    model = TASK.build_model(SMALL, 2, 1)
    before = evaluate(model, samples())
    optimizer = new_optimizer(model, SMALL, 0.05)
    for seed in range(6):
        report = train_epoch(model, optimizer, samples(), epoch(seed), quietly)
    after = evaluate(model, samples())
    assert after.loss < before.loss
    assert after.scores["dice_mean"].value > 0.5
    assert (report.images, after.images) == (4, 4)
    assert set(report.scores) == set(after.scores) >= {"accuracy_mean", "accuracy_std", "dice_mean", "dice_std"}


def test_evidential_training_lowers_its_loss_and_tells_doubt():
    objective = Evidential(temperature=0.05, kl_weight=0.3)
    model = TASK.build_model(SMALL, 2, 1)
    before = evaluate(model, samples(), objective)
    optimizer = new_optimizer(model, SMALL, 0.02)
    for seed in range(6):
        train_epoch(model, optimizer, samples(), epoch(seed, rate=0.02), quietly, objective=objective)
    after = evaluate(model, samples(), objective)
    assert after.loss < before.loss
    assert after.scores["dice_mean"].value > 0.5
    assert after.scores["uncertainty_wrong_mean"].value > after.scores["uncertainty_right_mean"].value
    parts = [after.scores[f"loss_{name}"].value for name in ("ice", "kl", "tce")]
    assert after.loss == pytest.approx(parts[0] + 0.3 * parts[1] + parts[2], rel=1e-5)


def test_a_model_that_has_diverged_says_that_it_knows_nothing():
    model = trained()
    with torch.no_grad():
        model.classify.weight.fill_(torch.nan)
    report = evaluate(model, samples())
    assert report.loss != report.loss  # NaN: absent in the table
    assert report.scores["uncertainty_right_mean"].value == 1.0


def test_copies_of_an_image_make_no_score_one_over_more_images():
    model = TASK.build_model(SMALL, 2, 1)
    optimizer = new_optimizer(model, SMALL, 0.05)
    report = train_epoch(model, optimizer, samples(3), epoch(copies=5), quietly)
    assert (report.images, report.scores["dice_mean"].images, report.scores["auroc_mean"].images) == (3, 3, 3)


def test_the_learning_rate_is_the_epochs():
    model = TASK.build_model(SMALL, 2, 1)
    optimizer = new_optimizer(model, SMALL, 99.0)
    train_epoch(model, optimizer, samples(2), epoch(rate=0.01), quietly)
    assert optimizer.param_groups[0]["lr"] == 0.01
    assert optimizer.param_groups[0]["momentum"] == 0.9


def test_progress_is_told_and_training_can_be_stopped():
    calls = []
    model = TASK.build_model(SMALL, 2, 1)
    train_epoch(model, new_optimizer(model, SMALL, 0.1), samples(), epoch(), lambda *call: calls.append(call))
    assert calls == [(1, 2), (2, 2)]

    def stop(done, total):
        raise Stopped("asked to stop")

    with pytest.raises(Stopped):
        train_epoch(model, new_optimizer(model, SMALL, 0.1), samples(), epoch(), stop)


def test_evaluation_changes_nothing_and_repeats():
    model = trained()
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first = evaluate(model, samples())
    assert first == evaluate(model, samples())
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match="no images"):
        evaluate(model, [])


def test_statistics_are_those_of_the_images_as_they_are():
    model = trained()
    made = samples()
    measure_statistics(TASK, model, made)
    model.eval()
    with torch.no_grad():
        features = [model.down[0].body[:2](torch.from_numpy(sample.image)[None, None]) for sample in made]
    norm = model.down[0].body[2]
    means = torch.stack([feature.mean(dim=(0, 2, 3)) for feature in features]).mean(dim=0)
    assert torch.allclose(norm.running_mean, means, atol=1e-5)
    assert norm.momentum == 0.1
    again = [value.clone() for value in model.state_dict().values()]
    measure_statistics(TASK, model, made)
    assert all(torch.equal(one, two) for one, two in zip(again, model.state_dict().values(), strict=True))


def test_global_random_state_neither_matters_nor_changes():
    first = trained(copies=2)
    np.random.seed(3)
    random.seed(3)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    second = trained(copies=2)
    assert same_weights(first, second)
    assert torch.equal(torch.get_rng_state(), before)
    assert not same_weights(first, trained(seed=2, copies=2))


def test_another_seed_is_another_model():
    assert same_weights(TASK.build_model(SMALL, 2, 1), TASK.build_model(SMALL, 2, 1))
    assert not same_weights(TASK.build_model(SMALL, 2, 1), TASK.build_model(SMALL, 2, 2))
