"""The linear probe: what it scores of features that tell much, little, or nothing."""

import numpy as np
import pytest
import torch
from torch import nn

from shared.learning.data.graded_images import GradedImage
from shared.learning.data.images import SegmentedImage
from shared.learning.probe import probe_score
from shared.learning.tasks import task_named
from shared.learning.tasks.contract import Collection

GRADING, SEGMENTING = task_named("dr_staging"), task_named("octa_segmentation")


class Reader(nn.Module):
    """A network whose features are what a function reads from its images."""

    def __init__(self, read, classes=3):
        super().__init__()
        self.classes = classes
        self.read = read
        self.weight = nn.Parameter(torch.zeros(1))

    def features(self, inputs):
        return self.read(inputs)

    def forward(self, inputs):
        return self.features(inputs)


def colours(inputs):
    """(B, 3, H, W) -> (B, 3)."""
    return inputs.mean(dim=(2, 3))


def constant(inputs):
    return torch.ones(len(inputs), 4)


def diverged(inputs):
    return colours(inputs) * torch.nan


def places(inputs):
    """Many places, of which the corner alone tells nothing: (B, 3, H, W) -> (B, 3, 2, 2)."""
    told = torch.zeros(len(inputs), 3, 2, 2)
    told[:, :, 1, 1] = colours(inputs)
    return told


def images(counts=(20, 8, 5), spread=4.0):
    """Grey images: so many of each grade, the brighter the higher their grade."""
    rng = np.random.default_rng(1)
    made = []
    for grade, count in enumerate(counts):
        for _ in range(count):
            image = np.clip(60 + 60 * grade + rng.normal(0, spread), 0, 255) * np.ones((32, 32, 3))
            made.append(GradedImage(f"eye-{len(made):02d}", image.astype(np.uint8), grade))
    return Collection(made, tuple(map(str, range(len(counts)))))


def score(read=colours, made=None, seed=1):
    return probe_score(GRADING, Reader(read), made or images(), seed)


def test_features_that_tell_all_score_one():
    assert score() == 1.0


def test_of_an_image_with_one_label_the_features_of_all_places_count():
    assert score(places) == score() == 1.0


def test_features_that_tell_nothing_score_as_much_as_guessing_and_not_the_most_frequent_class():
    """20 of 33 images are of one grade: plain accuracy would be 0.61."""
    assert score(constant) == pytest.approx(1 / 3)


def test_features_that_tell_a_little_score_in_between():
    assert 1 / 3 < score(made=images(spread=60.0)) < 1


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_features_that_are_no_numbers_score_nothing(value):
    assert score(diverged) == 0.0

    def once(inputs):
        read = colours(inputs).clone()
        read[0, 1] = value
        return read

    assert score(once) == 0.0


def test_a_network_that_has_diverged_scores_nothing():
    model = GRADING.build_model(GRADING.options({"encoder": "small"}), 3, 1)
    with torch.no_grad():
        model.encoder.stage2.conv.weight.fill_(1e30)
        model.encoder.stage3.conv.weight.fill_(torch.inf)
    assert probe_score(GRADING, model, images(), 1) == 0.0


def test_it_repeats_by_its_seed_and_whatever_was_drawn_before():
    made = images(spread=60.0)
    first = score(made=made)
    np.random.seed(3)
    torch.manual_seed(3)
    before = np.random.get_state()[1].copy()
    assert score(made=made) == first
    assert (np.random.get_state()[1] == before).all()
    assert len({score(made=made, seed=seed) for seed in range(6)}) > 1


def test_a_network_is_measured_with_the_statistics_of_these_images():
    """Statistics of another hospital, or none at all, do not enter; weights and head are left as they are."""
    model = GRADING.build_model(GRADING.options({"encoder": "small"}), 3, 1)
    first = probe_score(GRADING, model, images(), 1)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if name.endswith(("running_mean", "running_var")):
                value.fill_(7.0)
            elif name.startswith("head.classify"):
                value.fill_(torch.nan)
    before = {name: value.clone() for name, value in model.named_parameters()}
    assert probe_score(GRADING, model, images(), 1) == first
    for name, value in model.named_parameters():
        assert torch.equal(value, before[name]) or name.startswith("head.classify")


@pytest.mark.parametrize("counts", [(6, 1), (6, 6, 1), (6,), (1, 1), (0, 6)])
def test_too_few_images_are_refused(counts):
    with pytest.raises(ValueError, match="two classes or more, and two images or more of each"):
        score(made=images(counts))


def test_two_images_of_each_class_are_enough():
    assert 0 <= score(made=images((2, 2))) <= 1


def people(of_each=4, pieces=5):
    """Each person has a colour of its own, and one grade in all its pieces, drawn by chance."""
    rng = np.random.default_rng(4)
    groups = {}
    made = []
    for person, grade in enumerate(rng.permutation(np.repeat([0, 1], of_each))):
        colour = rng.integers(0, 256, 3).astype(np.uint8)
        for piece in range(pieces):
            made.append(GradedImage(f"r{person}/{piece:04d}", colour * np.ones((32, 32, 1), np.uint8), int(grade)))
            groups[made[-1].id] = f"p{person}"
    return Collection(made, ("a", "b"), groups)


def test_what_tells_people_apart_tells_nothing_of_one_whom_the_probe_does_not_know():
    made = people()
    assert score(made=Collection(made.samples, made.classes)) > 0.9
    assert score(made=made) < 0.6


def test_a_class_that_one_person_alone_has_is_refused():
    with pytest.raises(ValueError, match="or recordings of two people"):
        score(made=people(of_each=1))


def test_every_class_is_learnt_where_those_who_show_it_would_be_put_into_one_fold():
    pieces = [(0, 1, 20), (1, 0, 20), (2, 1, 40), (3, 0, 5), (3, 1, 20), (4, 1, 1), (5, 1, 2)]
    made, groups = [], {}
    for person, grade, count in pieces:
        for piece in range(count):
            level = np.full((32, 32, 3), 200 if grade else 50, np.uint8)
            made.append(GradedImage(f"p{person}-{grade}/{piece:04d}", level, grade))
            groups[made[-1].id] = f"p{person}"
    assert score(made=Collection(made, ("a", "b"), groups)) == 1


def segmented(count=8, side=33):
    """Each image's own level on both of its halves; the mask is the left half."""
    rng = np.random.default_rng(2)
    mask = np.zeros((side, side), np.uint8)
    mask[:, : side // 2] = 1
    levels = rng.permutation(np.linspace(0.1, 0.9, count))
    return Collection(
        [
            SegmentedImage(f"eye-{n}", np.full((side, side), level, np.float32), mask if n % 2 else 1 - mask)
            for n, level in enumerate(levels)
        ],
        ("background", "vessel"),
    )


def pixels_by_side(inputs):
    """The image's level, and which half a pixel is on: (B, 1, H, W) -> (B, 2, H, W)."""
    side = torch.zeros_like(inputs)
    side[..., : inputs.shape[-1] // 2] = 1
    return torch.cat([inputs, side], dim=1)


def truth(inputs):
    """The one feature that tells all: of a bright image vessels are where it is bright."""
    return (inputs > 0.5).float()


def test_pixels_of_a_segmentation():
    made = segmented()
    bright = Collection(
        [
            SegmentedImage(one.id, np.where(one.mask == 1, 0.9, 0.1).astype(np.float32), one.mask)
            for one in made.samples
        ],
        made.classes,
    )
    assert probe_score(SEGMENTING, Reader(truth, 2), bright, 1) == 1.0
    assert probe_score(SEGMENTING, Reader(torch.zeros_like, 2), bright, 1) == pytest.approx(0.5)


def test_an_image_is_never_divided_over_folds(monkeypatch):
    """256 pixels of each image are drawn, none where it was filled up, and all of them are tested together."""
    from sklearn import model_selection

    seen = []
    of_sklearn = model_selection.cross_val_predict

    def watched(classifier, features, labels, *, groups, cv, method):
        seen.extend((set(groups[train]), set(groups[test])) for train, test in cv)
        assert np.bincount(groups).tolist() == [256] * 8
        assert set(labels) == {0, 1}
        return of_sklearn(classifier, features, labels, groups=groups, cv=cv, method=method)

    monkeypatch.setattr(model_selection, "cross_val_predict", watched)
    probe_score(SEGMENTING, Reader(pixels_by_side, 2), segmented(), 1)
    assert len(seen) == 5
    assert all(not train & test for train, test in seen)
    assert set().union(*(test for _, test in seen)) == set(range(8))
