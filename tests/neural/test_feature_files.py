import errno
import multiprocessing
import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from image_cases import Means, corrupt, folder, means, paint
from softq.errors import DataError, ModelError, RunError
from softq.formats.captions import Captions, names_file, read_features
from softq.neural.images import Encoder, extract, feature_file


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


def interrupted(images, encoder, out, at=6, **options):
    """Stop after some images; the unfinished file."""
    with pytest.raises(StopError):
        extract(images, encoder, out, batch_size=2, progress=stop_at(at), **options)
    assert not out.exists()
    (part,) = out.parent.glob(f".{out.name}.*.part")
    return part


def test_an_interrupted_run_is_resumed(tmp_path):
    images, wanted = folder(tmp_path)
    interrupted(images, means(), tmp_path / "x.npy")
    encoder = means()
    made = extract(images, encoder, tmp_path / "x.npy", batch_size=2)
    assert made.before == 6
    assert sum(encoder.module.batches) == 4
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), wanted)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "x.names.txt", "x.npy"]


class Killed(Means):
    """Takes its process with it after some batches."""

    def forward(self, images):
        if len(self.batches) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(images)


def test_a_killed_run_is_resumed(tmp_path):
    images, wanted = folder(tmp_path)
    out = tmp_path / "x.npy"
    child = multiprocessing.get_context("fork").Process(
        target=extract,
        args=(images, replace(means(), module=Killed()), out),
        kwargs={"batch_size": 2, "workers": 0},
    )
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert extract(images, means(), out).before == 6
    np.testing.assert_array_equal(np.load(out), wanted)


def test_rows_that_were_not_written_as_a_whole_are_encoded_again(tmp_path):
    images, wanted = folder(tmp_path)
    out = tmp_path / "x.npy"
    rows = np.lib.format.open_memmap(interrupted(images, means(), out), "r+")
    rows[1, 2] = np.nan  # as a new file has it everywhere
    rows.flush()
    assert extract(images, means(), out).before == 5
    np.testing.assert_array_equal(np.load(out), wanted)


def test_changed_images_are_read_again(tmp_path):
    images, wanted = folder(tmp_path)
    out = tmp_path / "x.npy"
    part = interrupted(images, means(), out)
    paint(images["01.png"], (7, 8, 9))
    for path, ago in (
        (part, 100),
        (images["01.png"], 50),
        *((images[f"0{row}.png"], 200) for row in (0, 2, 3, 4, 5)),
    ):
        os.utime(path, (time.time() - ago,) * 2)
    interrupted(images, means(), out, at=0)  # which forgets nothing
    assert extract(images, means(), out).before == 5
    wanted[1] = (7, 8, 9)
    np.testing.assert_array_equal(np.load(out), wanted)


@pytest.mark.parametrize("change", ["images", "encoder", "weights", "precision"])
def test_an_unfinished_file_of_something_else_is_kept(tmp_path, change):
    images, wanted = folder(tmp_path)
    interrupted(images, means(), tmp_path / "x.npy")
    others = {name: images[name] for name in list(images)[:-1]} if change == "images" else images
    encoder = means(
        name="other" if change == "encoder" else "means",
        weights="v" if change == "weights" else "w",
    )
    precision = "float32" if change == "precision" else "float16"
    changed = {
        "images": "9-images",
        "encoder": "other-w",
        "weights": "means-v",
        "precision": "float32",
    }[change]
    message = (
        r"begun and not finished with .*\(\.x\.npy\.means-w-float16-10-images-\w+\.part, now"
        rf" \S*{changed}\S*\): .* to begin anew"
    )
    with pytest.raises(RunError, match=message):
        extract(others, encoder, tmp_path / "x.npy", precision=precision)
    assert extract(images, means(), tmp_path / "x.npy").before == 6
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), wanted)


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "shape", "type"])
def test_damaged_rows_are_no_features(tmp_path, damage):
    images, wanted = folder(tmp_path)
    out = tmp_path / "x.npy"
    part = interrupted(images, means(), out)
    content = part.read_bytes()
    changed = {
        "cut": content[:-1],
        "empty": b"",
        "text": b"no array",
        "shape": content.replace(b"(10, 3)", b"(9, 3) "),
        "type": content.replace(b"<f2", b"<i2"),
    }
    part.write_bytes(changed[damage])
    with pytest.raises(RunError, match=r"\.part is damaged: expected 10 rows of 3 features in"):
        extract(images, means(), out)
    part.unlink()
    assert extract(images, means(), out).before == 0
    np.testing.assert_array_equal(np.load(out), wanted)


def test_what_is_kept_is_told_only_where_it_is(tmp_path, monkeypatch):
    images, _ = folder(tmp_path)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fail(*_):
        raise full

    for name, module, function, message in (
        ("y.npy", os, "posix_fallocate", r"cannot write .*y.npy: No space left on device$"),
        (
            "z.npy",
            feature_file,
            "write_atomically",
            r"cannot write .*z.npy: No space left on device; what is done is kept, .* resumes$",
        ),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(module, function, fail)
            with pytest.raises(RunError, match=message):
                extract(images, means(), tmp_path / name)
    assert extract(images, means(), tmp_path / "y.npy").before == 0
    assert extract(images, means(), tmp_path / "z.npy").before == 10


def test_corrupt_images_are_refused_once_all_others_are_done(tmp_path):
    images, wanted = folder(tmp_path)
    content = images["04.png"].read_bytes()
    for name in ("04.png", "08.png"):
        corrupt(images[name])
    out = tmp_path / "x.npy"
    with pytest.raises(DataError, match=r"2 images cannot be read: 04.png \(.*\); 08.png \(.*\);"):
        extract(images, means(), out, batch_size=3)
    assert not out.exists()
    assert not names_file(out).exists()
    images["04.png"].write_bytes(content)  # mended
    encoder = means()
    made = extract(images, encoder, out, skip_corrupt=True)
    assert sum(encoder.module.batches) == 2  # the two that were corrupt
    assert list(made.skipped) == ["08.png"]
    assert (
        names_file(out).read_text().split()
        == made.names
        == [name for name in images if name != "08.png"]
    )
    np.testing.assert_array_equal(np.load(out), np.delete(wanted, 8, axis=0))


def test_nothing_but_corrupt_images_is_an_error(tmp_path):
    images, _ = folder(tmp_path, 1)
    corrupt(images["00.png"])
    with pytest.raises(DataError, match=r"1 image cannot be read: 00.png .*; no other image is"):
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
    with pytest.raises(ModelError, match=r"expected finite features of 00.png, got NaN or"):
        extract(images, large, tmp_path / "x.npy")
    assert extract(images, large, tmp_path / "y.npy", precision="float32").names == list(images)


def test_files_that_cannot_be_written_are_errors(tmp_path):
    images, _ = folder(tmp_path, 2)
    with pytest.raises(DataError, match=r"expected a file called .npy for the features, got"):
        extract(images, means(), tmp_path / "x.txt")
    with pytest.raises(DataError, match="expected images to encode, got none"):
        extract({}, means(), tmp_path / "x.npy")
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot write .*file/x.npy: (Not a directory|File exists)"):
        extract(images, means(), tmp_path / "file" / "x.npy")
