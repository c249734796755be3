"""Splits: disjoint, whole groups, a file goes before the fractions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shared.errors import DataError
from shared.learning.data.splits import SPLITS, Folds, SplitPlan, divide, folds_of, split_images
from tests.learning.fixtures_file import cases


def alike(ids):
    """Images of one class."""
    return dict.fromkeys(ids, 0)


group_sizes = st.lists(st.integers(1, 6), min_size=3, max_size=25)


def images_of(sizes):
    return {f"eye{group}-{patch}": f"eye{group}" for group, size in enumerate(sizes) for patch in range(size)}


@given(group_sizes, st.integers(0, 2**63 - 1))
def test_every_image_is_in_one_split_and_groups_stay_whole(sizes, seed):
    groups = images_of(sizes)
    split = divide(groups, SplitPlan(), seed)
    assert set(split) == set(groups)
    assert set(split.values()) == set(SPLITS)
    for group in set(groups.values()):
        assert len({split[image] for image in groups if groups[image] == group}) == 1


@given(st.integers(5, 60), st.integers(0, 2**63 - 1))
def test_fractions_are_met_to_within_one_image(count, seed):
    split = list(divide(images_of([1] * count), SplitPlan(), seed).values())
    for name, fraction in (("train", 0.6), ("validation", 0.2), ("test", 0.2)):
        assert abs(split.count(name) - fraction * count) <= 1


def test_the_seed_decides():
    groups = images_of([1] * 20)
    assert divide(groups, SplitPlan(), 1) == divide(dict(reversed(groups.items())), SplitPlan(), 1)
    assert divide(groups, SplitPlan(), 1) != divide(groups, SplitPlan(), 2)


def test_group_pattern_keeps_patches_together(tmp_path):
    ids = [f"scan{scan}_q{quadrant}" for scan in range(5) for quadrant in range(4)]
    parts = split_images(alike(ids), tmp_path, SplitPlan(), 3, r"^(scan\d+)_")
    scans = [{image.split("_")[0] for image in parts[name]} for name in SPLITS]
    assert sum(len(found) for found in scans) == 5
    assert [len(parts[name]) for name in SPLITS] == [12, 4, 4]
    with pytest.raises(DataError, match="images/other: group_pattern"):
        split_images(alike([*ids, "other"]), tmp_path, SplitPlan(), 3, r"^(scan\d+)_")


def test_the_file_decides_unless_told_otherwise(tmp_path):
    (tmp_path / "split.csv").write_text("\ufeffid,split\na,test\nb,train\nc,validation\n", encoding="utf-8")
    parts = split_images(alike("abc"), tmp_path, SplitPlan(), 1)
    assert parts == {"train": ("b",), "validation": ("c",), "test": ("a",)}
    drawn = {tuple(split_images(alike("abc"), tmp_path, SplitPlan(file=False), seed)["test"]) for seed in range(20)}
    assert len(drawn) == 3


def test_a_group_column_is_enough(tmp_path):
    rows = "".join(f"i{number},g{number // 2}\n" for number in range(10))
    (tmp_path / "split.csv").write_text("id,group\n" + rows)
    parts = split_images(alike(f"i{number}" for number in range(10)), tmp_path, SplitPlan(), 1)
    groups = [{int(image[1:]) // 2 for image in parts[name]} for name in SPLITS]
    assert sum(len(found) for found in groups) == len(set.union(*groups)) == 5


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("name,split\na,test\n", ["the columns must be id"]),
        ("id,split\na,test\na,val\nz,train\n", ["line 3: 'a' is there twice", "not 'val'", "'z'", "'b' has no line"]),
        ("id,split\na,train\nb,train\nc,train\n", ["validation split is empty", "test split is empty"]),
        ("id,split,group\na,train,x\nb,test,x\nc,validation,y\n", ["group 'x' is in test and train"]),
        ("id,group\na,x\nb,\nc,y\n", ["the group of 'b' is empty"]),
    ],
)
def test_a_wrong_file_is_explained_completely(tmp_path, text, sentences):
    (tmp_path / "split.csv").write_text(text)
    with pytest.raises(DataError) as caught:
        split_images(alike("abc"), tmp_path, SplitPlan(), 1)
    for sentence in sentences:
        assert sentence in str(caught.value)


def test_too_few_images_leave_a_split_empty(tmp_path):
    with pytest.raises(DataError, match="no more than 2 images in 2 groups"):
        split_images(alike("ab"), tmp_path, SplitPlan(), 1)


def test_so_many_are_drawn_for_training_and_the_others_stay(tmp_path):
    ids = alike([f"eye{number}" for number in range(20)])
    whole = split_images(ids, tmp_path, SplitPlan(), 3)
    drawn = {seed: split_images(ids, tmp_path, SplitPlan(train_images=5), seed) for seed in (3, 4)}
    assert len(drawn[3]["train"]) == len(set(drawn[3]["train"]) & set(whole["train"])) == 5
    assert (drawn[3]["validation"], drawn[3]["test"]) == (whole["validation"], whole["test"])
    assert drawn[3]["train"] != drawn[4]["train"]
    with pytest.raises(DataError, match="train_images: there are 12 images for training, not 13; lower it"):
        split_images(ids, tmp_path, SplitPlan(train_images=13), 3)


def test_fractions_must_add_up():
    with pytest.raises(ValidationError, match="add up to 1"):
        SplitPlan(train=0.6, validation=0.3, test=0.2)


@pytest.mark.parametrize("case", cases("oct_folds"))
def test_worked_folds(case):
    expected = case["expected"]
    parts = expected["outer3_inner2"]
    turn = Folds(outer=3, inner=2)
    splits = {fold: turn.split_of(fold) for fold in range(5)}
    assert splits[parts["test"]] == "test"
    assert splits[parts["val"]] == "validation"
    assert {fold for fold, split in splits.items() if split == "train"} == set(parts["train"])
    images = {f"i{number}": f"i{number}" for number in range(sum(expected["sizes_for_157"]))}
    dealt = list(folds_of(images, alike(images), 5, 1).values())
    assert [dealt.count(fold) for fold in range(5)] == expected["sizes_for_157"]


@given(
    st.dictionaries(st.integers(0, 200), st.tuples(st.integers(0, 60), st.integers(0, 4)), min_size=1),
    st.integers(3, 8),
)
def test_folds_are_stratified_and_keep_groups_whole(images, count):
    groups = {f"i{number}": f"eye{group}" for number, (group, _) in images.items()}
    classes = {f"i{number}": severity for number, (_, severity) in images.items()}
    dealt = folds_of(groups, classes, count, 5)
    of_group = {}
    for image, group in groups.items():
        of_group.setdefault(group, []).append(image)
    assert all(len({dealt[image] for image in members}) == 1 for members in of_group.values())
    for severity in range(5):
        worst = [members for members in of_group.values() if max(classes[image] for image in members) == severity]
        sizes = [sum(dealt[members[0]] == fold for members in worst) for fold in range(count)]
        assert sum(sizes) == len(worst)
        assert max(sizes) - min(sizes) <= 1


def test_over_all_turns_every_image_is_tested_once_and_never_trained_on_meanwhile(tmp_path):
    classes = {f"i{number}": number % 3 for number in range(45)}
    tested = []
    for outer in range(5):
        turns = [
            split_images(classes, tmp_path, SplitPlan(folds=Folds(outer=outer, inner=inner)), 7) for inner in range(4)
        ]
        for parts in turns:
            assert sorted(image for name in SPLITS for image in parts[name]) == sorted(classes)
            assert {classes[image] for image in parts["test"]} == {0, 1, 2}
        assert len({parts["test"] for parts in turns}) == 1
        assert len({parts["validation"] for parts in turns}) == 4
        tested += turns[0]["test"]
    assert sorted(tested) == sorted(classes)


def test_a_file_with_splits_and_folds_contradict(tmp_path):
    (tmp_path / "split.csv").write_text("id,split\na,test\nb,train\nc,validation\n")
    turn = Folds(count=3, outer=0, inner=1)
    with pytest.raises(DataError, match="take the column split out"):
        split_images(alike("abc"), tmp_path, SplitPlan(folds=turn), 1)
    assert len(split_images(alike("abc"), tmp_path, SplitPlan(folds=turn, file=False), 1)["test"]) == 1


@pytest.mark.parametrize("wrong", [{"outer": 5, "inner": 0}, {"outer": 0, "inner": 4}, {"outer": -1, "inner": 0}])
def test_turns_that_there_are_not(wrong):
    with pytest.raises(ValidationError):
        Folds(**wrong)
