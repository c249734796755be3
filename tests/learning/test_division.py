"""Blocks: whatever is asked, and however folders change, nothing that leaves is about fewer images than a block has."""

from __future__ import annotations

import csv
import hashlib
import io
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import DataError
from shared.exchange.records.run import RoundConfiguration
from shared.learning.data.division import Block, Member, deal, present
from shared.learning.data.graded_images import GradedImage
from shared.learning.data.sets import members_of, sets_of
from shared.learning.data.splits import SPLITS, Folds, SplitName, SplitPlan
from shared.learning.data.units import Unit, settled
from shared.learning.metrics import MEANS_OVER_CLASSES, OF_CHOSEN, grading_scores, pixel_scores
from shared.learning.objectives import CrossEntropy
from shared.learning.tasks.contract import Collection, Dataset, Evaluation, Sample, divided
from shared.learning.tasks.segmentation.task import PixelScoring
from site_client.configuration import Policy
from site_client.disclosure import ScoreTable, withheld
from tests.learning.spans import Vector, smallest_support

SECRET = b"s" * 32
LEAST = 4
IMAGE = np.zeros((1, 1, 3), np.uint8)


def content(name: object) -> str:
    return hashlib.sha256(repr(name).encode()).hexdigest()


def unit(name: object, kind: str | None = None, group: str | None = None, split: SplitName | None = None) -> Unit:
    return Unit(str(name), (content(name),), kind or "", kind, group, split)


def dealt(units: Sequence[Unit], least: int = LEAST, secret: bytes = SECRET) -> list[list[Unit]]:
    blocks = deal([], {"fundus": units}, least, secret)
    return [list(found) for found in present(blocks, "fundus", units, least, secret).blocks.values()]


# --- the exact check itself -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        (["abcdef", "abcde"], {"f"}),  # two sets that differ by one image
        (["abcd", "bcde"], {"a", "e"}),
        (["abcdef", "efghij", "abcdghijk"], {"e", "f", "k"}),  # no two of them show these, all three do
        (["abcd", "efgh", "abcdefgh"], None),
        (["abcdefghij", "abcde"], None),
    ],
)
def test_a_combination_that_is_about_few_images_is_found(sets: list[str], told: set[str] | None) -> None:
    assert smallest_support([dict.fromkeys(images, 1) for images in sets], 4) == told


# --- how images are dealt ---------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), min_size=LEAST, max_size=60), st.binary(max_size=4))
def test_every_image_is_dealt_once_with_all_of_its_group_into_a_block_that_is_large_enough(
    images: list[tuple[int, int]], secret: bytes
) -> None:
    units = [unit(number, str(kind), f"eye {group}") for number, (kind, group) in enumerate(images)]
    blocks = dealt(units, secret=secret)
    assert sorted(each.id for block in blocks for each in block) == sorted(each.id for each in units)
    assert all(len(block) >= LEAST for block in blocks)
    assert max(Counter(group for block in blocks for group in {each.group for each in block}).values()) == 1


def test_a_class_with_three_blocks_worth_of_images_has_blocks_of_its_own() -> None:
    units = [unit(number, "mild" if number < 13 else "rare" if number < 16 else "none") for number in range(40)]
    kinds = Counter(tuple(sorted({str(each.kind) for each in block})) for block in dealt(units))
    assert kinds == {("mild",): 3, ("none",): 5, ("none", "rare"): 1}


def test_who_comes_together_is_the_secrets_to_say() -> None:
    units = [unit(number) for number in range(40)]
    by_secret = [{frozenset(each.id for each in block) for block in dealt(units, secret=s)} for s in (b"a", b"b", b"a")]
    assert by_secret[0] == by_secret[2] != by_secret[1]
    assert dealt(units[::-1]) == dealt(units)


def test_a_block_lies_in_one_set_of_the_hospitals_own_and_a_set_that_fills_none_waits() -> None:
    sets: list[SplitName] = ["train"] * 10 + ["validation"] * 5 + ["test"] * 3
    units = [unit(number, split=split) for number, split in enumerate(sets)]
    blocks = deal([], {"fundus": units}, LEAST, SECRET)
    found = present(blocks, "fundus", units, LEAST, SECRET)
    assert sorted((len(block), {each.split for each in block}) for block in found.blocks.values()) == [
        (4, {"train"}),
        (5, {"validation"}),
        (6, {"train"}),
    ]
    assert found.waiting == 3
    with pytest.raises(DataError, match="the test set is empty: none of 3 whole blocks"):
        sets_of(found.blocks, SplitPlan(), 1)


def test_new_images_wait_until_they_fill_a_block_and_no_block_ever_changes() -> None:
    units = [unit(number) for number in range(20)]
    blocks = deal([], {"fundus": units}, LEAST, SECRET)
    for number in range(20, 26):
        units.append(unit(number))
        later = deal(blocks, {"fundus": units}, LEAST, SECRET)
        assert later[: len(blocks)] == blocks
        found = present(later, "fundus", units, LEAST, SECRET)
        assert found.waiting == {20: 1, 21: 2, 22: 3, 23: 0, 24: 1, 25: 2}[number]
        blocks = later
    assert len(blocks) == 6


def test_a_block_that_lost_or_changed_an_image_is_left_out_whole_and_comes_back() -> None:
    units = [unit(number, "0") for number in range(20)]
    blocks = deal([], {"fundus": units}, LEAST, SECRET)
    whole = present(blocks, "fundus", units, LEAST, SECRET).blocks
    chosen = whole[0][0]
    of_first = chosen.id
    for now in ([], [replace(chosen, contents=(content("other"),))], [replace(chosen, label="1", kind="1")]):
        changed = [each for each in units if each.id != of_first] + now
        assert deal(blocks, {"fundus": changed}, LEAST, SECRET) == blocks
        found = present(blocks, "fundus", changed, LEAST, SECRET)
        assert found.blocks == {number: block for number, block in whole.items() if number != 0}
        assert (found.waiting, found.left_out + found.barred) == (0, len(whole[0]) - (not now))
    renamed = [each for each in units if each.id != of_first] + [replace(chosen, id="renamed")]
    assert present(blocks, "fundus", renamed, LEAST, SECRET).blocks.keys() == whole.keys()


def test_a_block_knows_its_images_by_marks_and_one_of_an_older_version_comes_to_the_same() -> None:
    units = [unit(f"Anna Meyer {number}", "severe" if number % 3 else "mild") for number in range(20)]
    blocks = deal([], {"fundus": units}, LEAST, SECRET)
    text = "".join(block.model_dump_json() for block in blocks)
    assert not [each for each in units if each.id in text or each.contents[0] in text or each.label in text]
    marks = [each.label for block in blocks for each in block.folders["fundus"]]
    assert len({*marks}) == len(units), "equal labels are not seen to be equal"
    assert not {*marks} & {Member.of(replace(each, contents=()), SECRET).label for each in units}
    whole = present(blocks, "fundus", units, LEAST, SECRET).blocks
    older = [
        Block(folders={"fundus": tuple(Member(id=each.id, contents=each.contents, label=each.label) for each in found)})
        for found in whole.values()
    ]
    assert [block.marked(SECRET) for block in older] == blocks


def test_another_file_of_a_dealt_name_and_further_images_of_a_dealt_person_are_dealt_no_more() -> None:
    units = [unit(number, group=f"person {number // 2}") for number in range(20)]
    blocks = deal([], {"fundus": units}, LEAST, SECRET)
    later = [*units[1:], replace(units[0], contents=(content("again"),), group=None)]
    later += [unit(f"follow-up {number}", group=f"person {number}") for number in range(1, 8)]
    assert deal(blocks, {"fundus": later}, LEAST, SECRET) == blocks
    assert present(blocks, "fundus", later, LEAST, SECRET).barred == 8


def test_groups_that_are_named_only_afterwards_are_told_instead_of_divided() -> None:
    units = [unit(number) for number in range(20)]
    blocks = deal([], {"fundus": units}, LEAST, SECRET)
    named = [replace(each, group="one person") for each in units]
    with pytest.raises(DataError, match="the group 'one person' lies in two blocks"):
        present(blocks, "fundus", named, LEAST, SECRET)


def test_an_image_of_two_folders_is_in_one_block_of_both() -> None:
    shared, own = [unit(number) for number in range(14)], [unit(("own", number)) for number in range(9)]
    folders = {"dr": [*shared, *own], "fundus": [replace(each, id=f"f{each.id}") for each in shared]}
    blocks = deal([], folders, LEAST, SECRET)
    assert {tuple(block.folders) for block in blocks} == {("dr",), ("dr", "fundus")}
    for block in blocks:
        contents = [{each.contents for each in members} for members in block.folders.values()]
        assert all(each == contents[0] and len(each) >= LEAST for each in contents)


def test_a_folder_that_comes_later_takes_over_the_blocks_of_which_it_has_all() -> None:
    units = [unit(number) for number in range(12)]
    blocks = deal([], {"dr": units}, LEAST, SECRET)
    first = {each.contents for each in present(blocks, "dr", units, LEAST, SECRET).blocks[0]}
    further = [each for each in units if each.contents in first] + [
        each for each in units if each.contents not in first
    ][:2]
    later = deal(blocks, {"dr": units, "fundus": further}, LEAST, SECRET)
    assert [tuple(block.folders) for block in later] == [("dr", "fundus"), ("dr",), ("dr",)]
    found = present(later, "fundus", further, LEAST, SECRET)
    assert (list(found.blocks), found.barred) == ([0], 2)


def test_a_folder_that_comes_later_takes_over_no_part_of_a_block_and_none_that_divides_its_groups() -> None:
    units = [unit(number) for number in range(2 * LEAST + 1)]
    blocks = deal([], {"dr": units}, LEAST, SECRET)
    whole = present(blocks, "dr", units, LEAST, SECRET).blocks
    smaller, larger = ([each.contents for each in whole[number]] for number in range(2))
    assert (len(smaller), len(larger)) == (LEAST, LEAST + 1)
    part = [each for each in units if each.contents != larger[0]]
    assert [len(block.folders) for block in deal(blocks, {"dr": units, "fundus": part}, LEAST, SECRET)] == [2, 1]
    one_person = [replace(each, group="person") if each.contents in (smaller[0], larger[0]) else each for each in units]
    assert deal(blocks, {"dr": units, "fundus": one_person}, LEAST, SECRET) == blocks
    assert present(blocks, "fundus", one_person, LEAST, SECRET).barred == len(units)


def test_scans_that_share_pictures_with_another_folder_come_into_their_blocks_which_are_large_enough_in_both() -> None:
    pictures = [unit(f"{number} {layer}") for number in range(12) for layer in ("superficial", "deep")]
    scans = [
        Unit(str(number), (content(f"{number} superficial"), content(f"{number} deep")), "mild", "mild")
        for number in range(12)
    ]
    blocks = deal([], {"octa": pictures, "rdr": scans}, LEAST, SECRET)
    assert [{name: len(members) for name, members in block.folders.items()} for block in blocks] == [
        {"octa": 2 * LEAST, "rdr": LEAST}
    ] * 3
    of_octa, of_rdr = (
        present(blocks, name, found, LEAST, SECRET).blocks for name, found in (("octa", pictures), ("rdr", scans))
    )
    for number in range(3):
        assert {each.id.split()[0] for each in of_octa[number]} == {each.id for each in of_rdr[number]}


def test_a_greater_minimum_leaves_out_what_was_dealt_in_smaller_blocks() -> None:
    units = [unit(number) for number in range(20)]
    blocks = deal([], {"fundus": units}, LEAST, SECRET)
    found = present(blocks, "fundus", units, LEAST + 1, SECRET)
    assert (len(found.blocks), found.left_out) == (0, 20)


def test_copies_of_a_file_count_once_and_must_agree(tmp_path: Path) -> None:
    first, copy = unit("a", "0"), replace(unit("a", "0"), id="b")
    assert settled([copy, first], tmp_path, None) == (first,)
    with pytest.raises(DataError, match="'a' and 'b' are the same, byte by byte, and their labels differ"):
        settled([first, replace(copy, label="1", kind="1")], tmp_path, None)
    (tmp_path / "split.csv").write_text("id,split,group\na,train,x\nb,test,y\n")
    with pytest.raises(DataError, match=r"their groups differ.*\n.*their sets differ"):
        settled([first, copy], tmp_path, None)


# --- whatever is asked ------------------------------------------------------------------------------------------


plans = st.one_of(
    st.tuples(st.floats(0.05, 0.9), st.floats(0.05, 0.9), st.booleans(), st.none() | st.integers(1, 12)).map(
        lambda drawn: SplitPlan(
            train=drawn[0],
            validation=(1 - drawn[0]) * drawn[1],
            test=(1 - drawn[0]) * (1 - drawn[1]),
            file=drawn[2],
            train_images=drawn[3],
        )
    ),
    st.builds(
        lambda outer, inner: SplitPlan(folds=Folds(count=3, outer=outer, inner=inner), file=False),
        st.integers(0, 2),
        st.integers(0, 1),
    ),
)


@dataclass
class Site:
    """A site of two tasks, whose folders change and which answers offers; its rule of what leaves is the product's.

    Args:
        folders: what lies in each, by name.
        has_sets: whether its people say themselves which image is in which set.
        told: every number that has left, as the weights with which images enter it, by their contents.
    """

    folders: dict[str, dict[str, Unit]] = field(default_factory=lambda: {"dr": {}, "fundus": {}})
    blocks: list[Block] = field(default_factory=list)
    has_sets: bool = False
    told: list[Vector] = field(default_factory=list)
    count: int = 0

    def units(self, folder: str) -> list[Unit]:
        by_content: dict[tuple[str, ...], Unit] = {}
        for name, each in sorted(self.folders[folder].items()):
            by_content.setdefault(each.contents, replace(each, id=name))
        return list(by_content.values())

    def add(self, folder: str, images: int, random: Random) -> None:
        for _ in range(images):
            self.count += 1
            group = f"person {self.count // 2}" if self.count % 3 else None
            split = SPLITS[self.count // 2 % 3] if self.has_sets else None
            self.folders[folder][f"i{self.count}"] = unit(self.count, random.choice("0011122"), group, split)

    def change(self, random: Random) -> None:
        folder, other = random.sample(["dr", "fundus"], 2)
        if not self.folders[folder]:
            return
        name = random.choice(sorted(self.folders[folder]))
        found = self.folders[folder][name]
        match random.choice(["lose", "change", "relabel", "move", "copy", "rename"]):
            case "lose":
                del self.folders[folder][name]
            case "change":
                self.count += 1
                self.folders[folder][name] = replace(found, contents=(content(self.count),))
            case "relabel":
                kind = random.choice("012")
                self.folders[folder][name] = replace(found, label=kind, kind=kind)
            case "move":
                self.folders[other][f"{name}m"] = self.folders[folder].pop(name)
            case "copy":
                self.folders[other][f"{name}c"] = found
            case "rename":
                self.folders[folder][f"{name}r"] = self.folders[folder].pop(name)

    def answer(self, folder: str, plan: SplitPlan, seed: int) -> None:
        here = {name: self.units(name) for name in self.folders}
        self.blocks = deal(self.blocks, here, LEAST, SECRET)
        try:
            found = present(self.blocks, folder, here[folder], LEAST, SECRET)
            sets = sets_of(found.blocks, plan, seed)
        except DataError:
            return
        samples = [GradedImage(each.id, IMAGE, int(each.label)) for each in here[folder]]
        dataset = divided(Collection(samples, ("0", "1", "2")), members_of(sets, found.blocks))
        contents = {each.id: each.contents for each in here[folder]}
        for name in SPLITS:
            images = getattr(dataset, name)
            self.told += numbers([(contents[each.id], each.grade) for each in images], withheld(images, dataset.blocks))


def numbers(images: Sequence[tuple[object, int]], kept_back: frozenset[str]) -> Iterator[Vector]:
    """The weights of images in what a row tells: in scores over all of them, in each class's recall and count, in means
    over classes, and in what a model that answers one class for all images, as sure of each as its maker likes, tells
    of right and wrong.
    """
    yield {image: 1 for image, _ in images}
    of_class: Mapping[int, list[object]] = defaultdict(list)
    for image, grade in images:
        of_class[grade].append(image)
    for grade, members in of_class.items():
        for name in (f"accuracy_of_{grade}", f"images_of_{grade}"):
            if name not in kept_back:
                yield dict.fromkeys(members, 1)
    if not MEANS_OVER_CLASSES & kept_back:
        yield {image: Fraction(1, len(members)) for members in of_class.values() for image in members}
    for grade, members in of_class.items():
        rest = [image for image, other in images if other != grade]
        for name, chosen in (("uncertainty_right", members), ("uncertainty_wrong", rest)):
            if name not in kept_back and len(chosen) >= LEAST:
                yield dict.fromkeys(chosen, 1)
    most_sure = [image for image, _ in images[: len(images) - len(images) // 10]]
    if "selective_accuracy_10" not in kept_back and len(images) // 10 >= LEAST:
        yield dict.fromkeys(most_sure, 1)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.lists(st.tuples(plans, st.integers(0, 2**40)), min_size=2, max_size=8))
def test_no_combination_of_what_leaves_in_any_runs_is_about_fewer_images_than_a_block(
    chance: int, offers: list[tuple[SplitPlan, int]]
) -> None:
    """Differencing, over any offers and any changes of the folders between them."""
    random = Random(chance)
    site = Site(has_sets=random.random() < 0.25)
    site.add("dr", random.randint(12, 40), random)
    site.add("fundus", random.randint(0, 20), random)
    for plan, seed in offers:
        site.answer(random.choice(["dr", "dr", "fundus"]), plan, seed)
        for _ in range(random.randint(0, 4)):
            site.change(random)
        site.add(random.choice(["dr", "fundus"]), random.choice([0, 1, 1, 2, 6]), random)
    assert smallest_support(site.told, LEAST) is None


@dataclass(frozen=True)
class Graded:
    id: str
    grade: int
    doubt: float


def row_of(samples: Sequence[Graded], blocks: Mapping[str, int], minimum_count: int = 5) -> dict[str, str]:
    """What leaves of a model that answers class 3 for every image, as unsure of each as its maker likes."""
    probabilities = np.tile([0.1, 0.1, 0.1, 0.7], (len(samples), 1))
    scores = grading_scores(
        np.array([each.grade for each in samples]), probabilities, np.array([each.doubt for each in samples])
    )
    return told(Evaluation(len(samples), 1.0, scores), samples, blocks, minimum_count)


def told(
    evaluation: Evaluation, samples: Sequence[Sample], blocks: Mapping[str, int], minimum_count: int
) -> dict[str, str]:
    dataset = Dataset([], samples, [], ("a", "b", "c", "d"), blocks=blocks)
    asked = RoundConfiguration(round=1, epochs=1, learning_rate=0.1, batch_size=2, seed=0, augmentation={})
    table = ScoreTable(asked, Policy(minimum_count=minimum_count), dataset)
    table.add(0, "validation", evaluation)
    return next(csv.DictReader(io.StringIO(table.content().decode())))


@pytest.mark.parametrize("is_torn", [True, False])
def test_a_model_that_answers_one_class_for_all_tells_no_sum_over_that_class(is_torn: bool) -> None:
    """Two sets that differ by a block with one image of the class would tell what the model thinks of that image."""
    images = [Graded(f"i{n}", 3 if n % 5 == 0 or not is_torn else n % 3, n / 100) for n in range(60)]
    blocks = {each.id: n // 5 for n, each in enumerate(images)}
    row = row_of(images, blocks)
    assert (row["images"], float(row["accuracy"])) == ("60", 0.2 if is_torn else 1.0)
    assert {name: row[name] for name in OF_CHOSEN} == dict.fromkeys(OF_CHOSEN, "")
    public = row_of(images, {}, minimum_count=1)
    assert float(public["uncertainty_right"]) == pytest.approx(
        np.mean([each.doubt for each in images if each.grade == 3]), abs=1e-4
    )


@dataclass(frozen=True)
class Vessels:
    id: str
    mask: tuple[bool, ...]


def test_a_score_of_the_images_that_have_vessels_is_told_only_where_all_have_them() -> None:
    """Two sets that differ by a block with one such image would tell that image's score."""
    random = np.random.default_rng(3)
    foreground = random.random((40, 2))  # (pixels, classes)
    probabilities = foreground / foreground.sum(axis=1, keepdims=True)

    def row(with_vessels: int, minimum_count: int = 5) -> dict[str, str]:
        masks = [(n < with_vessels,) * 10 + (False,) * 30 for n in range(20)]
        images = [Vessels(f"i{n}", mask) for n, mask in enumerate(masks)]
        looks = [[pixel_scores(np.array(each.mask, int), probabilities, np.full(40, 0.5)) for each in images]]
        scores = PixelScoring(CrossEntropy()).scores(looks)
        blocks = {each.id: n // 5 for n, each in enumerate(images)}
        return told(Evaluation(20, 1.0, scores), images, blocks, minimum_count)

    partial = [f"{name}_{of}" for name in ("sensitivity", "auroc", "auprc") for of in ("mean", "std")]
    assert not any(row(19)[name] for name in partial)
    assert all(row(20)[name] for name in partial)
    assert all(row(19, minimum_count=1)[name] for name in partial)
    assert row(19)["dice_mean"] != ""
