import errno
import json
import os
import time

import numpy as np
import pytest
from torch import nn

from image_cases import corrupt, folder, means, paint
from softq.data.captions import Captions, names_file, read_features
from softq.errors import DataError, ModelError, RunError
from softq.images import Encoder, extract
from softq.images.feature_file import _Rows


@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_features_are_written_with_names(tmp_path, precision):
    images, wanted = folder(tmp_path)
    out = tmp_path / "deep" / "x.npy"
    done = []
    made = extract(images, means(), out, precision=precision, batch_size=4, progress=done.append)
    assert (made.names, made.features, made.skipped, made.before) == (list(images), 3, {}, 0)
    assert done == [0, 4, 8, 10]
    found = np.load(out, allow_pickle=False)
    assert found.dtype == precision
    np.testing.assert_array_equal(found, wanted)
    assert names_file(out).read_text().splitlines() == list(images)
    assert sorted(path.name for path in out.parent.iterdir()) == ["x.names.txt", "x.npy"]
    captions = Captions(["04.png", "01.png"], [["A dog."], ["A cat."]])
    np.testing.assert_array_equal(read_features(out, captions), wanted[[4, 1]])


class StopError(Exception):
    pass


def stop_at(limit):
    def progress(done):
        if done >= limit:
            raise StopError

    return progress


def interrupted(images, encoder, out, monkeypatch, at=6, **options):
    """Stop after some images, each batch having been noted."""
    monkeypatch.setattr("softq.images.feature_file._SECONDS", -1.0)
    with pytest.raises(StopError):
        extract(images, encoder, out, batch_size=2, progress=stop_at(at), **options)
    assert not out.exists()


def test_an_interrupted_run_goes_on(tmp_path, monkeypatch):
    images, wanted = folder(tmp_path)
    interrupted(images, means(), tmp_path / "x.npy", monkeypatch)
    encoder = means()
    made = extract(images, encoder, tmp_path / "x.npy", batch_size=2)
    assert made.before == 4  # of 6 that were encoded, 2 had not been noted
    assert sum(encoder.module.batches) == 6
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), wanted)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "x.names.txt", "x.npy"]


def test_changed_images_are_read_again(tmp_path, monkeypatch):
    images, wanted = folder(tmp_path)
    out = tmp_path / "x.npy"
    interrupted(images, means(), out, monkeypatch)
    paint(images["01.png"], (7, 8, 9))
    for path, ago in ((tmp_path / ".x.npy.part.json", 100), (images["01.png"], 50), *((images[f"0{row}.png"], 200) for row in (0, 2, 3))):
        os.utime(path, (time.time() - ago,) * 2)
    interrupted(images, means(), out, monkeypatch, at=0)  # which forgets nothing
    monkeypatch.setattr("softq.images.feature_file._SECONDS", 0.0)
    assert extract(images, means(), out).before == 3
    wanted[1] = (7, 8, 9)
    np.testing.assert_array_equal(np.load(out), wanted)


@pytest.mark.parametrize("change", ["images", "encoder", "weights", "precision"])
def test_an_unfinished_file_of_something_else_is_kept(tmp_path, monkeypatch, change):
    images, wanted = folder(tmp_path)
    interrupted(images, means(), tmp_path / "x.npy", monkeypatch)
    others = {name: images[name] for name in list(images)[:-1]} if change == "images" else images
    encoder = means(name="other" if change == "encoder" else "means", weights="v" if change == "weights" else "w")
    precision = "float32" if change == "precision" else "float16"
    with pytest.raises(RunError, match=rf"begun and not finished with .*{change} \S+, now .*or delete \S+x.npy.part.json to begin anew"):
        extract(others, encoder, tmp_path / "x.npy", precision=precision)
    assert extract(images, means(), tmp_path / "x.npy").before == 4
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), wanted)


@pytest.mark.parametrize("notes", ["[]", "{}", "NULL", "OTHER", "MORE"])
def test_damaged_notes_are_named(tmp_path, monkeypatch, notes):
    images, wanted = folder(tmp_path)
    out, path = tmp_path / "x.npy", tmp_path / ".x.npy.part.json"
    interrupted(images, means(), out, monkeypatch)
    kept = json.loads(path.read_text())
    changed = {"NULL": kept | {"done": None}, "OTHER": kept | {"corrupt": {"a": "why"}}, "MORE": kept | {"done": 11}}
    path.write_text(json.dumps(changed[notes]) if notes in changed else notes)
    with pytest.raises(RunError, match=r"\.x\.npy\.part\.json is damaged: expected notes .*; delete it to begin anew$"):
        extract(images, means(), out)
    path.unlink()
    assert extract(images, means(), out).before == 0
    np.testing.assert_array_equal(np.load(out), wanted)


def test_rows_that_are_lost_are_no_features(tmp_path, monkeypatch):
    images, wanted = folder(tmp_path)
    out, part = tmp_path / "x.npy", tmp_path / ".x.npy.part"
    damaged = r"\.x\.npy\.part is damaged: expected {} bytes or more of {} rows that are done, got {}; delete it to begin anew$"
    interrupted(images, means(), out, monkeypatch)
    os.truncate(part, 4 * 6 - 1)
    with pytest.raises(RunError, match=damaged.format(24, 4, 23)):
        extract(images, means(), out)
    part.unlink()

    def note_and_lose(rows, note=_Rows.note):
        note(rows)
        os.truncate(part, 8 * 6 + 2)

    with monkeypatch.context() as patched:
        patched.setattr(_Rows, "note", note_and_lose)
        with pytest.raises(RunError, match=damaged.format(60, 10, 50)):
            extract(images, means(), out, batch_size=10)
    assert not out.exists()
    part.unlink()
    extract(images, means(), out)
    np.testing.assert_array_equal(np.load(out), wanted)


def test_what_is_kept_is_told_only_where_it_is(tmp_path, monkeypatch):
    images, _ = folder(tmp_path)
    (tmp_path / ".x.npy.part").mkdir()  # cannot be written
    with pytest.raises(RunError, match=r"cannot write .*x.npy: Is a directory$"):
        extract(images, means(), tmp_path / "x.npy")

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name, method, message in (
        ("y.npy", "put", r"cannot write .*y.npy: No space left on device$"),
        ("z.npy", "finish", r"cannot write .*z.npy: No space left on device; what is done is kept"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(_Rows, method, fail)
            with pytest.raises(RunError, match=message):
                extract(images, means(), tmp_path / name)
    assert extract(images, means(), tmp_path / "z.npy").before == 10


def test_corrupt_images_are_refused_once_all_others_are_done(tmp_path):
    images, wanted = folder(tmp_path)
    content = images["04.png"].read_bytes()
    for name in ("04.png", "08.png"):
        corrupt(images[name])
    out = tmp_path / "x.npy"
    with pytest.raises(DataError, match=r"2 images cannot be read: 04.png \(.*\); 08.png \(.*\); all others are done and kept"):
        extract(images, means(), out, batch_size=3)
    assert not out.exists()
    assert not names_file(out).exists()
    images["04.png"].write_bytes(content)  # mended
    encoder = means()
    made = extract(images, encoder, out, skip_corrupt=True)
    assert sum(encoder.module.batches) == 2  # the two that were corrupt
    assert list(made.skipped) == ["08.png"]
    assert names_file(out).read_text().split() == made.names == [name for name in images if name != "08.png"]
    np.testing.assert_array_equal(np.load(out), np.delete(wanted, 8, axis=0))


def test_nothing_but_corrupt_images_is_an_error(tmp_path):
    images, _ = folder(tmp_path, 1)
    corrupt(images["00.png"])
    with pytest.raises(DataError, match=r"1 image cannot be read: 00.png .*; no other image is left"):
        extract(images, means(), tmp_path / "x.npy", skip_corrupt=True)


def test_a_file_that_is_there_is_replaced(tmp_path):
    images, wanted = folder(tmp_path)
    for _ in range(2):
        assert extract(images, means(), tmp_path / "x.npy").before == 0
    few = dict(list(images.items())[:3])
    extract(few, means(), tmp_path / "x.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), wanted[:3])


def test_features_that_do_not_fit_are_errors(tmp_path):
    images, _ = folder(tmp_path)

    class Large(nn.Module):
        def forward(self, pixels):
            return pixels.mean((2, 3)) * 1e4

    large = Encoder("large", Large(), 3, "w", size=16, crop=1.0)
    with pytest.raises(ModelError, match=r"expected finite features of 00.png, got NaN or infinity in float16: use --precision float32"):
        extract(images, large, tmp_path / "x.npy")
    assert extract(images, large, tmp_path / "y.npy", precision="float32").names == list(images)


def test_files_that_cannot_be_written_are_errors(tmp_path):
    images, _ = folder(tmp_path, 2)
    with pytest.raises(DataError, match=r"expected a file called .npy for the features, got .*x.txt"):
        extract(images, means(), tmp_path / "x.txt")
    with pytest.raises(DataError, match="expected images to encode, got none"):
        extract({}, means(), tmp_path / "x.npy")
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot write .*file/x.npy: (Not a directory|File exists)"):
        extract(images, means(), tmp_path / "file" / "x.npy")
