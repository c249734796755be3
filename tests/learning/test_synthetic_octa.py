"""Synthetic images: reproducible, exact masks, three devices that differ."""

import numpy as np
import pytest
from PIL import Image

from deploy.local.synthetic_octa import HAZY, NARROW, STYLES, WIDE, contact_sheet, render, write_site
from shared.learning.data.images import read_pairs


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
@pytest.mark.parametrize("size", [32, 97, 512])
def test_any_size(style, size):
    image, mask = render(style, size, 1)
    assert image.shape == mask.shape == (size, size)
    assert (image.dtype, mask.dtype) == (np.uint8, np.bool_)
    assert 0.02 < mask.mean() < 0.6
    assert image[mask].mean() > 1.25 * image[~mask].mean()


def test_seeded_and_independent_of_global_state():
    np.random.seed(1)
    first = render(WIDE, 64, 5)
    np.random.seed(2)
    again = render(WIDE, 64, 5)
    other = render(WIDE, 64, 6)
    assert all(np.array_equal(one, two) for one, two in zip(first, again, strict=True))
    assert not np.array_equal(first[1], other[1])


def test_devices_differ():
    means = [np.mean([render(style, 96, seed)[0].mean() for seed in range(3)]) for style in (NARROW, WIDE, HAZY)]
    assert means[0] + 8 < means[1]
    assert means[1] + 8 < means[2]


@pytest.mark.parametrize("size", [31, 513])
def test_other_sizes_are_refused(size):
    with pytest.raises(ValueError, match="between 32 and 512"):
        render(WIDE, size, 1)


def test_a_written_site_reads_back(tmp_path):
    write_site(tmp_path, style=NARROW, images=3, size=48, seed=4)
    pairs = read_pairs(tmp_path, 2)
    assert [pair.id for pair in pairs] == ["narrow-001", "narrow-002", "narrow-003"]
    write_site(tmp_path / "again", style=NARROW, images=1, size=48, seed=4)
    again = read_pairs(tmp_path / "again", 2)[0]
    assert np.array_equal(again.image, pairs[0].image)
    assert np.array_equal(again.mask, pairs[0].mask)


def test_the_contact_sheet_has_a_row_for_each_style(tmp_path):
    sheet = contact_sheet(size=32, pairs=1)
    assert isinstance(sheet, Image.Image)
    assert sheet.size == (2 * 40 + 8, 3 * 40 + 8)
