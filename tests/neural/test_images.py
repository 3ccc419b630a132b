import multiprocessing
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from PIL.JpegImagePlugin import JpegImageFile

from image_cases import corrupt, folder, means, paint
from softq.errors import DataError
from softq.formats.captions import Captions
from softq.neural.images import encode, find_images, images_of_captions, read_picture, stream


def gradient(width, height):
    """An image whose red tells the column, green the row, in 0..255."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([x, y, 0 * x], -1).round().astype(np.uint8))


# Files


def test_images_of_folders_are_sorted_and_called_by_their_path(tmp_path):
    for name in ("b.JPG", "a.png", "sub/c.jpeg", ".hidden.jpg", ".thumbs/x.jpg", "notes.txt"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).touch()
    alone = paint(tmp_path / "z.png", "red")
    assert list(find_images([tmp_path / "in", alone])) == ["a.png", "b.JPG", "sub/c.jpeg", "z.png"]
    assert find_images([tmp_path / "in"])["sub/c.jpeg"] == tmp_path / "in" / "sub" / "c.jpeg"


def test_files_that_cannot_be_named_are_errors(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"expected a folder with images .* got none in it"):
        find_images([tmp_path / "empty"])
    with pytest.raises(DataError, match="expected an image or a folder of images, and nothing is"):
        find_images([tmp_path / "nowhere"])
    first, second = (paint(tmp_path / name / "x.png", "red") for name in "ab")
    with pytest.raises(DataError, match=r"got two that are called 'x.png': .*a/x.png and"):
        find_images([first, second])
    with pytest.raises(DataError, match="must fit on a line"):
        find_images([paint(tmp_path / "two\nlines.png", "red")])


def test_captions_choose_images_and_their_order():
    images = {
        name: Path("in") / name
        for name in ("a.jpg", "val/a.jpg", "val/b.jpg", "val/c.jpg", "train/c.jpg")
    }

    def chosen(*names):
        return images_of_captions(images, Captions(list(names), [["A dog."]] * len(names)))

    assert list(chosen("b.jpg", "a.jpg").items()) == [
        ("b.jpg", Path("in/val/b.jpg")),
        ("a.jpg", Path("in/a.jpg")),
    ]
    assert list(chosen("coco/val/b.jpg", "train/c.jpg").values()) == [
        Path("in/val/b.jpg"),
        Path("in/train/c.jpg"),
    ]
    with pytest.raises(DataError, match=r"expected one image 'c.jpg' \(image 2\), got 2:"):
        chosen("a.jpg", "c.jpg")
    with pytest.raises(DataError, match=r"got none for 'other/b.jpg' \(image 1\), 'x.jpg' \(image"):
        chosen("other/b.jpg", "x.jpg")  # val/b.jpg is in another folder
    with pytest.raises(DataError, match=r"expected one image 'y/val/b.jpg' \(image 2\), got one"):
        chosen("x/val/b.jpg", "y/val/b.jpg")
    with pytest.raises(DataError, match=r"'4.jpg' \(image 5\) and 2 more"):
        chosen(*(f"{number}.jpg" for number in range(7)))


# Pictures


def test_the_middle_is_seen(tmp_path):
    gradient(300, 200).save(tmp_path / "wide.png")
    seen = read_picture(tmp_path / "wide.png", 100, 0.5, "bilinear")
    assert seen.shape == (100, 100, 3)
    # A square of 100 pixels in the middle, columns 100 to 199 and rows 50 to 149, as it stands.
    np.testing.assert_array_equal(seen, np.asarray(gradient(300, 200))[50:150, 100:200])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["png", "tiff"])  # Pillow turns the latter by itself
def test_pictures_stand_upright(tmp_path, orientation, suffix):
    image, file = gradient(90, 60), tmp_path / f"turned.{suffix}"
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(file, exif=exif)
    with Image.open(file) as turned:
        upright = ImageOps.exif_transpose(turned)
    side = min(upright.size)
    left, top = ((length - side) // 2 for length in upright.size)
    wanted = np.asarray(upright.crop((left, top, left + side, top + side)))
    np.testing.assert_array_equal(read_picture(file, side, 1.0, "bicubic"), wanted)


def test_any_mode_becomes_rgb(tmp_path):
    grey = np.full((8, 8), 100, dtype=np.uint8)
    # transparent
    clear = np.dstack([np.full((8, 8, 3), 40, dtype=np.uint8), np.zeros((8, 8), dtype=np.uint8)])
    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    cases = {
        "grey.png": (Image.fromarray(grey), (100, 100, 100)),
        "deep.png": (Image.fromarray(grey.astype(np.uint16) << 8), (100, 100, 100)),
        "clear.png": (Image.fromarray(clear), (255, 255, 255)),
        "palette.gif": (palette, (10, 20, 30)),
        "black.png": (Image.new("1", (8, 8)), (0, 0, 0)),
        "print.jpg": (Image.new("CMYK", (8, 8), (0, 0, 0, 255)), (0, 0, 0)),
    }
    for name, (image, colour) in cases.items():
        image.save(tmp_path / name)
        seen = read_picture(tmp_path / name, 4, 1.0, "bilinear")
        assert (seen == colour).all(), name
    transparent = palette.copy()
    transparent.info["transparency"] = bytes([255, 0])
    transparent.save(tmp_path / "hole.png")
    assert (read_picture(tmp_path / "hole.png", 4, 1.0, "bilinear") == 255).all()


def test_large_photographs_are_decoded_small_and_look_the_same(tmp_path, monkeypatch):
    smooth = Image.fromarray(
        np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    ).resize((1800, 1200), Image.Resampling.BICUBIC)
    smooth.save(tmp_path / "large.jpg", quality=95)
    asked = []
    decode_small = JpegImageFile.draft
    monkeypatch.setattr(
        JpegImageFile,
        "draft",
        lambda image, mode, size: asked.append(size) or decode_small(image, mode, size),
    )
    seen = read_picture(tmp_path / "large.jpg", 224, 0.875, "bicubic")
    assert asked == [(512, 512)]  # twice the 256 that are cropped to 224
    monkeypatch.setattr(JpegImageFile, "draft", lambda *_: None)
    whole = read_picture(tmp_path / "large.jpg", 224, 0.875, "bicubic")
    assert np.abs(seen.astype(int) - whole).max() <= 4


# Streams


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 0), (3, 2), (64, 1), (None, None)])
def test_features_come_in_order(tmp_path, batch_size, workers):
    images, wanted = folder(tmp_path, 40)
    np.testing.assert_array_equal(
        encode(list(images.values()), means(), batch_size=batch_size, workers=workers), wanted
    )
    sizes = [
        len(batch.features)
        for batch in stream(list(images.values()), means(), batch_size=batch_size, workers=workers)
    ]
    assert sizes == [min(batch_size or 32, 40 - first) for first in range(0, 40, batch_size or 32)]


def test_no_images_are_no_batches():
    assert list(stream([], means())) == []


def test_all_corrupt_images_are_named(tmp_path):
    images, _ = folder(tmp_path)
    corrupt(images["03.png"])
    images["05.png"].unlink()
    images["07.png"].write_bytes(images["07.png"].read_bytes()[:-30])
    with pytest.raises(DataError, match=r"3 images cannot be read: .*03.png \(cannot"):
        encode(list(images.values()), means(), batch_size=2)


def test_a_stream_that_is_left_ends_its_workers(tmp_path):
    images, _ = folder(tmp_path, 40)
    batches = stream(list(images.values()), means(), batch_size=2, workers=2)
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    batches.close()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", [0, 2])
def test_no_file_does_more_than_end_up_in_a_list(tmp_path, workers):
    """Images with bytes cut off or changed.

    Each is read or has a reason, and no other error comes out.
    """
    rng = np.random.default_rng(0)
    files = []
    for suffix in ("jpg", "png", "gif", "tiff", "webp", "bmp"):
        paint(tmp_path / f"whole.{suffix}", (10, 200, 30))
        content = (tmp_path / f"whole.{suffix}").read_bytes()
        for number in range(20):
            changed = bytearray(content[: rng.integers(len(content))] if number % 2 else content)
            for place in rng.integers(len(changed), size=3) if changed and number % 2 == 0 else ():
                changed[place] = rng.integers(256)
            files.append(tmp_path / f"{number}.{suffix}")
            files[-1].write_bytes(changed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of what it reads all the same
        batches = list(stream(files, means(), batch_size=32, workers=workers))
    assert sum(len(batch.features) for batch in batches) == len(files)
    reasons = [why for batch in batches for why in batch.corrupt.values()]
    assert 40 < len(reasons) < len(files)
    assert all(why and why.isprintable() for why in reasons)
