"""Splits: disjoint, whole groups, a file goes before the fractions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shared.errors import DataError
from shared.learning.data.splits import SPLITS, Folds, SplitPlan
from tests.at_length import held_to
from tests.learning.dealt import image, sets_anew
from tests.learning.fixtures_file import cases


def alike(ids):
    """Images of one class."""
    return [image(name) for name in ids]


group_sizes = st.lists(st.integers(1, 6), min_size=3, max_size=25)


def images_of(sizes):
    return [
        image(f"eye{group}-{patch}", None, f"eye{group}") for group, size in enumerate(sizes) for patch in range(size)
    ]


@given(group_sizes, st.integers(0, 2**63 - 1))
def test_every_image_is_in_one_split_and_groups_stay_whole(tmp_path_factory, sizes, seed):
    images = images_of(sizes)
    parts = sets_anew(images, tmp_path_factory.getbasetemp(), SplitPlan(), seed)
    assert sorted(name for part in parts.values() for name in part) == sorted(each.id for each in images)
    assert all(parts[name] for name in SPLITS)
    groups = [{name.split("-")[0] for name in part} for part in parts.values()]
    assert sum(map(len, groups)) == len(sizes)


@given(st.integers(5, 60), st.integers(0, 2**63 - 1))
def test_fractions_are_met_to_within_one_image(tmp_path_factory, count, seed):
    parts = sets_anew(images_of([1] * count), tmp_path_factory.getbasetemp(), SplitPlan(), seed)
    for name, fraction in (("train", 0.6), ("validation", 0.2), ("test", 0.2)):
        assert abs(len(parts[name]) - fraction * count) <= 1


def test_the_seed_decides(tmp_path):
    images = images_of([1] * 20)
    assert sets_anew(images, tmp_path, SplitPlan(), 1) == sets_anew(images[::-1], tmp_path, SplitPlan(), 1)
    assert sets_anew(images, tmp_path, SplitPlan(), 1) != sets_anew(images, tmp_path, SplitPlan(), 2)


def test_a_pattern_of_the_hospitals_own_keeps_patches_together(tmp_path):
    ids = [f"scan{scan}_q{quadrant}" for scan in range(5) for quadrant in range(4)]
    parts = sets_anew(alike(ids), tmp_path, SplitPlan(), 3, pattern=r"^(scan\d+)_")
    scans = [{name.split("_")[0] for name in parts[split]} for split in SPLITS]
    assert sum(len(found) for found in scans) == 5
    assert [len(parts[name]) for name in SPLITS] == [12, 4, 4]
    with pytest.raises(DataError, match=r"other: the pattern .* of site\.yaml, groups, finds no group in this name"):
        sets_anew(alike([*ids, "other"]), tmp_path, SplitPlan(), 3, pattern=r"^(scan\d+)_")


def test_the_file_decides_unless_told_otherwise(tmp_path):
    (tmp_path / "split.csv").write_text("\ufeffid,split\na,test\nb,train\nc,validation\n", encoding="utf-8")
    assert sets_anew(alike("abc"), tmp_path, SplitPlan(), 1) == {"train": ("b",), "validation": ("c",), "test": ("a",)}
    drawn = {sets_anew(alike("abc"), tmp_path, SplitPlan(file=False), seed)["test"] for seed in range(20)}
    assert len(drawn) == 3


def test_a_group_column_is_enough(tmp_path):
    rows = "".join(f"i{number},g{number // 2}\n" for number in range(10))
    (tmp_path / "split.csv").write_text("id,group\n" + rows)
    parts = sets_anew(alike(f"i{number}" for number in range(10)), tmp_path, SplitPlan(), 1)
    groups = [{int(name[1:]) // 2 for name in parts[split]} for split in SPLITS]
    assert sum(len(found) for found in groups) == len(set.union(*groups)) == 5


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("name,split\na,test\n", ["the columns must be id"]),
        ("id,split\na,test\na,val\nz,train\n", ["line 3: 'a' is there twice", "not 'val'", "'z'", "'b' has no line"]),
        ("id,split\na,train\nb,train\nc,train\n", ["validation set is empty", "test set is empty"]),
        ("id,split,group\na,train,x\nb,test,x\nc,validation,y\n", ["group 'x' is in test and train"]),
        ("id,group\na,x\nb,\nc,y\n", ["the group of 'b' is empty"]),
        ("id,group\na,x,1\nb,x\nc,y\n", ["split.csv, line 2: has more cells than columns"]),
    ],
)
def test_a_wrong_file_is_explained_completely(tmp_path, text, sentences):
    (tmp_path / "split.csv").write_text(text)
    with pytest.raises(DataError) as caught:
        sets_anew(alike("abc"), tmp_path, SplitPlan(), 1)
    for sentence in sentences:
        assert sentence in str(caught.value)


def test_too_few_images_leave_a_set_empty(tmp_path):
    with pytest.raises(DataError, match="set is empty: none of 2 whole blocks of images comes into it"):
        sets_anew(alike("ab"), tmp_path, SplitPlan(), 1)


def test_so_many_are_drawn_for_training_and_the_others_stay(tmp_path):
    ids = alike([f"eye{number}" for number in range(20)])
    whole = sets_anew(ids, tmp_path, SplitPlan(), 3)
    drawn = {seed: sets_anew(ids, tmp_path, SplitPlan(train_images=5), seed) for seed in (3, 4)}
    assert len(drawn[3]["train"]) == len(set(drawn[3]["train"]) & set(whole["train"])) == 5
    assert (drawn[3]["validation"], drawn[3]["test"]) == (whole["validation"], whole["test"])
    assert drawn[3]["train"] != drawn[4]["train"]
    with pytest.raises(DataError, match="train_images: there are 12 images for training, not 13; lower it"):
        sets_anew(ids, tmp_path, SplitPlan(train_images=13), 3)


def test_training_on_one_image_is_training_on_a_block(tmp_path):
    """The gradient over one image would be all but the image."""
    parts = sets_anew(alike(f"eye{number}" for number in range(40)), tmp_path, SplitPlan(train_images=1), 3, least=5)
    assert len(parts["train"]) == 5


def test_fractions_must_add_up():
    with pytest.raises(ValidationError, match="add up to 1"):
        SplitPlan(train=0.6, validation=0.3, test=0.2)


@pytest.mark.parametrize("case", cases("oct_folds"))
def test_worked_folds(case, tmp_path):
    expected = case["expected"]
    parts = expected["outer3_inner2"]
    turn = Folds(outer=3, inner=2)
    splits = {fold: turn.split_of(fold) for fold in range(5)}
    assert splits[parts["test"]] == "test"
    assert splits[parts["val"]] == "validation"
    assert {fold for fold, split in splits.items() if split == "train"} == set(parts["train"])
    images = alike(f"i{number}" for number in range(sum(expected["sizes_for_157"])))
    assert [
        len(sets_anew(images, tmp_path, SplitPlan(folds=Folds(outer=outer, inner=0)), 1)["test"]) for outer in range(5)
    ] == expected["sizes_for_157"]


@held_to(
    20,
    100,
    images=st.dictionaries(st.integers(0, 200), st.tuples(st.integers(0, 60), st.integers(0, 4)), min_size=60),
    count=st.integers(3, 8),
)
def test_folds_are_stratified_and_keep_groups_whole(tmp_path_factory, images, count):
    """Of a class that has blocks of its own, here the images of each person, folds hold as many but for one."""
    units = [image(f"i{number}", str(person % 5), f"{person}") for number, (person, _) in images.items()]
    people = {unit.id: str(unit.group) for unit in units}
    if len(set(people.values())) < 3 * count:
        return
    of_folds = [
        {
            people[name]
            for name in sets_anew(
                units,
                tmp_path_factory.getbasetemp(),
                SplitPlan(folds=Folds(count=count, outer=outer, inner=0)),
                5,
            )["test"]
        }
        for outer in range(count)
    ]
    assert sum(map(len, of_folds)) == len(set.union(*of_folds)) == len(set(people.values()))
    for kind in range(5):
        of_kind = {person for person in people.values() if int(person) % 5 == kind}
        if len(of_kind) >= 3:
            sizes = [len(of_kind & fold) for fold in of_folds]
            assert max(sizes) - min(sizes) <= 1


def test_over_all_turns_every_image_is_tested_once_and_never_trained_on_meanwhile(tmp_path):
    images = [image(f"i{number}", str(number % 3)) for number in range(45)]
    kind_of = {each.id: each.kind for each in images}
    tested = []
    for outer in range(5):
        turns = [sets_anew(images, tmp_path, SplitPlan(folds=Folds(outer=outer, inner=inner)), 7) for inner in range(4)]
        for parts in turns:
            assert sorted(name for split in SPLITS for name in parts[split]) == sorted(kind_of)
            assert {kind_of[name] for name in parts["test"]} == {"0", "1", "2"}
        assert len({parts["test"] for parts in turns}) == 1
        assert len({parts["validation"] for parts in turns}) == 4
        tested += turns[0]["test"]
    assert sorted(tested) == sorted(kind_of)


def test_more_folds_than_blocks_are_refused(tmp_path):
    with pytest.raises(DataError, match="5 folds are asked for, and there is no more than 4 whole blocks of images"):
        sets_anew(
            alike(f"i{number}" for number in range(20)), tmp_path, SplitPlan(folds=Folds(outer=0, inner=0)), 1, least=5
        )


def test_a_file_with_splits_and_folds_contradict(tmp_path):
    (tmp_path / "split.csv").write_text("id,split\na,test\nb,train\nc,validation\n")
    turn = Folds(count=3, outer=0, inner=1)
    with pytest.raises(DataError, match="take the column split out"):
        sets_anew(alike("abc"), tmp_path, SplitPlan(folds=turn), 1)
    assert len(sets_anew(alike("abc"), tmp_path, SplitPlan(folds=turn, file=False), 1)["test"]) == 1


@pytest.mark.parametrize("wrong", [{"outer": 5, "inner": 0}, {"outer": 0, "inner": 4}, {"outer": -1, "inner": 0}])
def test_turns_that_there_are_not(wrong):
    with pytest.raises(ValidationError):
        Folds(**wrong)
