"""What the captioning experiment reads, of which images it takes captions for near ones, and training that goes on from another run."""

import numpy as np
import pytest
import torch

from captioning_runs import (
    SIZE,
    TASK,
    captions_of,
    features_of,
    make_files,
    parts,
    prepared,
    recipe,
    run,
    write,
    write_json,
)
from small_runs import CPU
from softq.errors import DataError, RecipeError, RunError
from softq.formats.vocabulary import SPECIALS, UNKNOWN
from softq.lab.tasks.captioning import read_captioned
from softq.lab.worlds import SceneWorld
from softq.lab.worlds.scene_pictures import render, scene_features

pytestmark = pytest.mark.usefixtures("one_thread", "no_events")

WORLD = SceneWorld()
RAML, SQDML = (["--objective", name, "--tau", 0.3] for name in ("raml", "sqdml"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


# --- files ------------------------------------------------------------------------------------------------


def inputs_of(examples):
    return examples.take_inputs(torch.arange(len(examples)))[0].tolist()


def test_features_beside_captions_or_named(tmp_path, files):
    beside = read_captioned(recipe("--train", files["train"]).data).train
    np.save(tmp_path / "mine.npy", features_of(range(36))[::-1])
    (tmp_path / "mine.names.txt").write_text(
        "".join(f"folder/{number}.jpg\n" for number in reversed(range(36)))
    )
    named = read_captioned(
        recipe("--train", files["train"], "--train-features", tmp_path / "mine.npy").data
    ).train
    assert beside.references == named.references
    assert np.array_equal(beside.features, named.features)
    assert np.array_equal(beside.features, features_of(range(36)))
    found = prepared(
        "--train",
        files["train"],
        "--dev",
        files["dev"],
        "--dev-features",
        files["dev"].with_name("dev.features.npy"),
    )
    assert inputs_of(found.train) == features_of(range(36)).astype(np.float32).tolist()
    assert [" ".join(words) for words in found.dev.references[1]] == [
        "a cat on the right .",
        "the cat , right",
        "there is a cat on the right",
    ]
    assert found.inputs == SIZE


def test_splits_of_one_file(tmp_path):
    both = write_json(
        tmp_path / "all.json",
        {"train": range(8), "val": range(20, 24), "restval": range(30, 32), "test": range(40, 43)},
    )
    found = read_captioned(recipe("--train", both, "--dev", both, "--test", both).data)
    expected = ([*range(8), 30, 31], range(20, 24), range(40, 43))
    for part, numbers in zip(found, expected, strict=True):
        assert part.inputs == [f"{number}.jpg" for number in numbers]
        assert np.array_equal(part.features, features_of(numbers))
        assert part.references == [captions_of(number) for number in numbers]
    assert read_captioned(recipe("--train", both).data).dev is None
    assert (
        run(tmp_path / "run", "--train", both, "--dev", both, "--halve-dev", "--epochs", 1)[
            "examples"
        ]
        == 10
    )


def test_halves_of_dev(tmp_path, files):
    found = read_captioned(
        recipe("--train", files["train"], "--dev", files["dev"], "--halve-dev").data
    )
    assert found.dev.inputs == [f"{number}.jpg" for number in range(100, 109, 2)]
    assert found.test.inputs == [f"{number}.jpg" for number in range(101, 109, 2)]
    assert np.array_equal(found.test.features, features_of(range(101, 109, 2)))
    one = write(tmp_path / "one.tsv", {"1.jpg": ["a dog"]}, features_of([1]))
    with pytest.raises(DataError, match=r"one.tsv: expected two .* to halve, got 1"):
        prepared("--train", files["train"], "--dev", one, "--halve-dev")


def test_pairs_share_the_features_of_their_image(tmp_path):
    train = write(
        tmp_path / "train.tsv",
        {"1.jpg": ["a dog", "dog"], "2.jpg": ["a cat"], "3.jpg": ["no", "cat", "no"]},
        features_of([1, 2, 3]),
    )
    merged, pairs = prepared("--train", train), prepared("--train", train, "--no-merge")
    assert merged.train is merged.merged
    assert [len(several) for several in merged.train.take_references(torch.arange(3)).unpack()] == [
        2,
        1,
        3,
    ]
    assert (len(pairs.train), len(pairs.merged)) == (6, 3)
    assert pairs.train.inputs.table is pairs.merged.inputs.table  # not a copy for each caption
    assert pairs.train.inputs.rows.tolist() == [0, 0, 1, 2, 2, 2]
    vectors = features_of([1, 2, 3]).astype(np.float32).tolist()
    assert inputs_of(pairs.train) == [vectors[row] for row in (0, 0, 1, 2, 2, 2)]
    said = [
        pairs.target.decode(words)
        for (words,) in pairs.train.take_references(torch.arange(6)).unpack()
    ]
    assert said == ["a dog", "dog", "a cat", "no", "cat", "no"]
    assert len(pairs.dev.examples) == 3  # judged by images in any case


def test_captions_that_are_too_long_are_left_out_of_training_alone(tmp_path):
    images = {"1.jpg": ["a", "a b c"], "2.jpg": ["d e f"], "3.jpg": ["f g"]}
    train, dev = (
        write(tmp_path / f"{name}.tsv", images, features_of([1, 2, 3])) for name in ("train", "dev")
    )
    flags = ["--train", train, "--dev", dev, "--max-length", 2]
    for more in ([], ["--no-merge"]):
        found = prepared(*flags, *more)
        assert found.left_out == 2
        assert inputs_of(found.train) == features_of([1, 3]).astype(np.float32).tolist()
        assert found.train.take_references(torch.arange(2)).lengths.tolist() == [[1], [2]]
        assert [len(several) for several in found.dev.references] == [2, 1, 1]
    assert run(tmp_path / "run", *flags)["left_out"] == 2
    with pytest.raises(
        DataError, match=r"train.tsv: expected a text of at most max_length = 1 words, got none"
    ):
        prepared("--train", write(train, {"1.jpg": ["a b"]}, features_of([1])), "--max-length", 1)
    with pytest.raises(
        DataError, match="the built-in world: expected a text of at most max_length = 2 words"
    ):
        prepared("--max-length", 2)


def test_words_are_of_the_training_captions(tmp_path):
    train = write(tmp_path / "train.tsv", {"1.jpg": ["A Dog, a dog", "a cat"]}, features_of([1]))
    dev = write(tmp_path / "dev.tsv", {"1.jpg": ["A horse"]}, features_of([1]))
    found = prepared("--train", train, "--dev", dev)
    assert len(found.target) == SPECIALS + 4  # a dog , cat
    assert found.dev.references == [[["a", "horse"]]]  # words of references stay what they are
    assert found.dev.examples.take_references(torch.arange(1)).unpack() == [
        [[found.target.encode("a")[0], UNKNOWN]]
    ]
    assert len(prepared("--train", train, "--no-lowercase").target) == SPECIALS + 6
    assert len(prepared("--train", train, "--min-freq", 2).target) == SPECIALS + 2
    assert (
        len(prepared("--train", train, "--tokenizer", "space").target) == SPECIALS + 4
    )  # a dog, dog cat
    subwords = ["--vocabulary.kind", "subwords", "--vocabulary.size", 260, "--no-lowercase"]
    assert len(prepared("--train", train, *subwords).target) <= SPECIALS + 260
    with pytest.raises(
        RecipeError,
        match=(
            r"of whole words: expected min_freq = 1, .* and lowercase = false with kind = subwords,"
            r" got 1, unicode and true"
        ),
    ):
        recipe("--vocabulary.kind", "subwords")


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (
            features_of([1, 2]),
            r"expected 3 rows, one for each image, got 2, none for image '3.jpg'",
        ),
        (features_of([1, 2, 3, 4]), "expected 3 rows, one for each image, got 4"),
        (
            features_of([1, 2, 3]) * np.array([[1], [np.nan], [1]], np.float16),
            r"features of image '2.jpg' .* are not finite",
        ),
        (features_of([1, 2, 3]).astype(np.int64), "as float16, float32 or float64, got"),
        (features_of([1, 2, 3])[0], r"expected features \[images, size\]"),
    ],
)
def test_features_that_do_not_fit(tmp_path, features, message):
    train = write(
        tmp_path / "train.captions.tsv",
        {f"{number}.jpg": ["a dog"] for number in (1, 2, 3)},
        features,
    )
    with pytest.raises(DataError, match=message):
        run(tmp_path / "run", "--train", train)
    assert not (tmp_path / "run").exists()


def test_features_of_one_size(tmp_path, files):
    dev = write(tmp_path / "dev.tsv", {"1.jpg": ["a dog"]}, features_of([1], size=4))
    with pytest.raises(
        DataError,
        match="expected features of one size for all images, got 4, 6: were they made alike",
    ):
        prepared("--train", files["train"], "--dev", dev)


def test_files_that_are_not_there(tmp_path, files):
    with pytest.raises(DataError, match=r"cannot read .*none.tsv"):
        prepared("--train", tmp_path / "none.tsv")
    alone = write(tmp_path / "alone.tsv", {"1.jpg": ["a dog"]})
    with pytest.raises(DataError, match=r"alone.features.npy: cannot read it"):
        prepared("--train", alone)


def test_a_folder_of_images_that_is_not_there(tmp_path, files):
    assert prepared("--train", files["train"], "--images", tmp_path)
    with pytest.raises(
        DataError, match=r"images: expected a folder with the images, .* got nowhere"
    ):
        prepared("--train", files["train"], "--images", "nowhere")


def test_files_are_read_once_until_they_change(tmp_path):
    train = write(
        tmp_path / "train.captions.tsv",
        {"1.jpg": ["a dog"], "2.jpg": ["a cat"]},
        features_of([1, 2]),
    )
    first = prepared("--train", train)
    assert prepared("--train", train) is first
    np.save(tmp_path / "other.npy", features_of([3, 4]))
    (tmp_path / "other.npy").replace(tmp_path / "train.features.npy")
    assert (
        inputs_of(prepared("--train", train).train)
        == features_of([3, 4]).astype(np.float32).tolist()
    )


def test_the_built_in_world_is_drawn_anew_for_each_part():
    found = read_captioned(recipe().data)
    names = [part.inputs for part in found]
    assert [len(part) for part in names] == [32, 8, 8]
    assert names[1] != names[2]
    drawn = WORLD.sample(8, seed=2, captions=3)
    assert found.test.references == drawn.captions
    assert np.array_equal(
        found.test.features, scene_features(np.stack([render(scene) for scene in drawn.scenes]))
    )
    assert read_captioned(recipe("--data.seed", 1).data).train.inputs != names[0]


# --- neighbours -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("merge", [[], ["--no-merge"]])
def test_near_images_lend_their_captions(tmp_path, merge):
    vectors = np.array([[1, 0], [9, 0.5], [0, 1], [0.1, 2]], np.float16)
    images = {
        f"{number}.jpg": [f"w{number}{way}" for way in "abc"[: 1 + number % 3]]
        for number in range(4)
    }
    found = prepared("--train", write(tmp_path / "train.tsv", images, vectors), *merge)
    near = found.neighbours(1, torch.device("cpu"))
    numbers = torch.arange(len(found.train))
    lent = near(numbers, 5, torch.Generator().manual_seed(0)).sentences.unpack()
    own = found.train.take_references(numbers).unpack()
    partner = {0: 1, 1: 0, 2: 3, 3: 2}
    for theirs, mine in zip(lent, own, strict=True):
        image = int(found.target.decode(mine[0])[1])
        assert sorted(map(found.target.decode, theirs)) == images[f"{partner[image]}.jpg"]


def test_one_image_has_no_neighbours(tmp_path):
    train = write(tmp_path / "train.tsv", {"1.jpg": ["a dog", "the dog"]}, features_of([1]))
    for merge in ([], ["--no-merge"]):
        assert (
            run(
                tmp_path / f"run{len(merge)}", "--train", train, *RAML, "--sampler", "near", *merge
            )["left_out"]
            == 0
        )


def test_neighbours_are_looked_for_where_they_are_wanted(files, monkeypatch):
    asked = []
    monkeypatch.setattr(
        type(prepared(*parts(files, "train"))),
        "neighbours",
        lambda self, *given: asked.append(given),
    )
    for flags in (
        ["--sampler", "near"],
        [*RAML, "--sampler", "model"],
        [*RAML, "--sampler", "near+model", "--neighbours", 4],
    ):
        TASK.learner([recipe(*parts(files, "train"), *flags)], CPU)
    assert asked == [(4, torch.device("cpu"))]


# --- from another run -------------------------------------------------------------------------------------


def test_training_starts_from_a_captioner_of_the_same_features(tmp_path, files):
    flags = parts(files, "train", "dev", "test")
    run(tmp_path / "ml", *flags)
    start = ["--start", tmp_path / "ml"]
    model = ["--sampler", "model", "--refresh", "epoch"]
    assert run(tmp_path / "sqdml", *flags, *start, *SQDML, *model)["objective"] == "sqdml"
    longer = write(tmp_path / "longer.tsv", {"1.jpg": ["a dog"]}, features_of([1], size=9))
    with pytest.raises(
        RunError,
        match="expected a model of features of 9 numbers, as the images have, got one of 6",
    ):
        run(tmp_path / "no", "--train", longer, *start)
    with pytest.raises(DataError, match=r"dev.captions.tsv is not a captioner of softq"):
        run(tmp_path / "no", *flags, "--start", files["dev"])
    assert not (tmp_path / "no").exists()
