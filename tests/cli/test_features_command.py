import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from test_image_encoders import random_weights
from typer.testing import CliRunner

import softq
from image_cases import corrupt, paint
from softq.cli import app
from softq.formats.captions import names_file
from softq.neural.images import encode, load_encoder


def run(*arguments):
    return CliRunner().invoke(app, ["data", "features", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path):
    for number in range(5):
        paint(tmp_path / "in" / f"{number}.jpg", (40 * number, 200, 100), (120, 96))
    return tmp_path / "in"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "x.npy"


def scenes(folder, out, *more):
    return run(folder, "--encoder", "scenes", "--out", out, *more)


def test_a_folder_becomes_features_and_names(folder, out):
    made = scenes(folder, out)
    assert made.exit_code == 0, made.output
    wanted = encode(sorted(folder.iterdir()), load_encoder("scenes"))
    np.testing.assert_array_equal(np.load(out), wanted.astype(np.float16))
    assert names_file(out).read_text().split() == [f"{number}.jpg" for number in range(5)]
    assert f"{out}: 5 images, {wanted.shape[1]} features of scenes each" in made.stdout
    assert str(names_file(out)) in made.stdout


def test_json_says_what_was_made(folder, out):
    made = scenes(
        folder, out, "--json", "--precision", "float32", "--device", "cpu", "--batch-size", "2"
    )
    facts = json.loads(made.stdout)
    assert np.load(out).dtype == np.float32
    assert facts.pop("seconds") > 0
    assert facts == {
        "command": "data features",
        "softq": softq.__version__,
        "path": str(out),
        "names": str(names_file(out)),
        "encoder": "scenes",
        "weights": load_encoder("scenes").weights,
        "images": 5,
        "features": np.load(out).shape[1],
        "precision": "float32",
        "skipped": {},
        "resumed_from": 0,
    }


def test_captions_choose_images(folder, out, tmp_path):
    (tmp_path / "c.tsv").write_text("3.jpg#0\tA dog.\n1.jpg#0\tA cat.\n3.jpg#1\tDogs!\n")
    assert scenes(folder, out, "--captions", tmp_path / "c.tsv").exit_code == 0
    assert names_file(out).read_text().split() == ["3.jpg", "1.jpg"]
    np.testing.assert_array_equal(
        np.load(out),
        encode([folder / "3.jpg", folder / "1.jpg"], load_encoder("scenes")).astype(np.float16),
    )


def test_weights_come_from_a_file(folder, out, tmp_path):
    save_file(random_weights(), tmp_path / "w.safetensors")
    made = run(folder, "--weights", tmp_path / "w.safetensors", "--out", out)
    assert made.exit_code == 0, made.output
    wanted = encode(
        sorted(folder.iterdir()), load_encoder("efficientnet-lite0", tmp_path / "w.safetensors")
    )
    np.testing.assert_allclose(np.load(out), wanted, rtol=1e-3, atol=1e-3)


def test_corrupt_images_are_named_and_skipped_only_if_asked(folder, out):
    corrupt(folder / "1.jpg")
    corrupt(folder / "3.jpg")
    refused = scenes(folder, out)
    assert refused.exit_code == 2
    (line,) = refused.stderr.splitlines()
    assert line.startswith("softq: 2 images cannot be read: 1.jpg (")
    assert "3.jpg (" in line
    assert "--skip-corrupt" in line
    assert not out.exists()
    skipped = scenes(folder, out, "--skip-corrupt")
    assert skipped.exit_code == 0
    assert [line.split(": ")[1] for line in skipped.stderr.splitlines()] == [
        "skipped 1.jpg",
        "skipped 3.jpg",
    ]
    assert names_file(out).read_text().split() == ["0.jpg", "2.jpg", "4.jpg"]
    assert len(np.load(out)) == 3
    assert "3 images (3 of them before)" in skipped.stdout
    again = json.loads(scenes(folder, out, "--skip-corrupt", "--json").stdout)
    assert list(again["skipped"]) == ["1.jpg", "3.jpg"]


def test_a_stopped_command_says_how_to_go_on(folder, out, monkeypatch):
    def stop(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("softq.neural.images.extract", stop)
    stopped = scenes(folder, out)
    assert stopped.exit_code == 130
    assert stopped.stderr == f"softq: stopped; the same command continues with {out}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--encoder", "nothing"],
            (
                "expected an encoder efficientnet-lite0, vgg16-fc7, scenes, timm:NAME or"
                " torchvision:NAME, got 'nothing'"
            ),
        ),
        (["--out", "x.txt"], "expected a file called .npy for the features, got x.txt"),
        (
            ["--captions", "c.tsv"],
            "expected an image for each name, got none for 'other.jpg' (c.tsv, line 1)",
        ),
        (
            ["--device", "cuda"],
            "the device is to be a GPU (cuda), and torch finds none: choose auto or cpu",
        ),
    ],
)
def test_mistakes_are_one_line(folder, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "c.tsv").write_text("other.jpg\tA dog.\n")
    made = run(folder, "--encoder", "scenes", "--out", "x.npy", *arguments)
    assert made.exit_code == 2
    (line,) = made.stderr.splitlines()
    assert words in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.tsv", "in"]
