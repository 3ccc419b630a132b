"""Captioners on the command line.

Predict from features and from images, evaluate models and captions that are there already.
"""

import json

import numpy as np
import pytest

from ner_commands import FAST, evaluated, predictions, refused, softq, well
from softq.cli.kinds import captioner as captions_of_models
from softq.cli.kinds.sentences import line_generator
from softq.cli.progress import BarWatcher
from softq.formats.captions import read_captions
from softq.formats.vocabulary import Vocabulary
from softq.lab.worlds import SceneWorld
from softq.lab.worlds.scene_pictures import render, scene_features
from softq.linear import CRFTagger
from softq.metrics import CAPTION_METRICS, caption_statistics, reference_agreement
from softq.neural.recipe import CaptionDecoding, CaptionerSettings
from softq.neural.text_generator import TextGenerator
from softq.rewards import NegativeEditDistance

pytestmark = pytest.mark.usefixtures("one_thread")

IMAGES = [f"{number}.jpg" for number in range(7)]
SIZE = 12  # of features
# untrained models make no sense of punctuation
WORDS = "A dog runs two red balls lie here on a box The small cat sleeps near it"
TRUTHS = [
    ["A dog runs here.", "The small dog runs on."],
    ["Two red balls lie on a box!", "Balls, on a box.", "Red balls here."],
    ["The cat sleeps."],
    ["A cat sleeps on a box.", "It sleeps."],
    ["Two cats run.", "Small cats!"],
    ["A red box lies here.", "The box."],
    ["Here it is.", "It is red."],
]


def captioner(path, seed, *, features=SIZE, lowercase=True, encoder=""):
    """An untrained one whose captions differ from image to image, in a file."""
    settings = CaptionerSettings(embedding=8, hidden=16, init=1.0)
    vocabulary = Vocabulary.fit_words([WORDS], lowercase=lowercase)
    decoding = CaptionDecoding(beam=3, max_words=8)
    model = settings.build(features, len(vocabulary), seed)
    TextGenerator(model, settings, vocabulary, None, decoding, encoder).save(path)
    return path


def lines(texts):
    return "".join(f"{text}\n" for text in texts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two captioners; captions as lines and as JSON; features with names and without."""
    folder = tmp_path_factory.mktemp("captions")
    captioner(folder / "ours", 1)
    captioner(folder / "theirs", 2)
    vectors = np.random.default_rng(0).normal(size=(len(IMAGES), SIZE)).astype(np.float16)
    (folder / "test.captions.tsv").write_text(
        lines("\t".join([image, *several]) for image, several in zip(IMAGES, TRUTHS, strict=True))
    )
    np.save(folder / "test.features.npy", vectors)
    np.save(folder / "named.npy", vectors[::-1])
    (folder / "named.names.txt").write_text(lines(IMAGES[::-1]))
    records = [
        {
            "filename": image,
            "filepath": "all",
            "split": "val" if number < 4 else "test",
            "sentences": [{"raw": text} for text in several],
        }
        for number, (image, several) in enumerate(zip(IMAGES, TRUTHS, strict=True))
    ]
    (folder / "all.json").write_text(json.dumps({"images": records}))
    return folder


@pytest.fixture(scope="module")
def vectors(folder):
    return np.load(folder / "test.features.npy")


# --- predict ----------------------------------------------------------------------------------------------


def test_rows_become_captions(folder, vectors):
    expected = TextGenerator.load(folder / "ours").generate(vectors)
    assert len({said.text for said in expected}) > 3
    assert predictions(folder / "ours", folder / "test.features.npy") == lines(
        said.text for said in expected
    )
    named = predictions(folder / "ours", folder / "named.npy")
    assert named == lines(
        f"{image}\t{said.text}" for image, said in zip(IMAGES[::-1], expected[::-1], strict=True)
    )
    with_chances = predictions(
        folder / "ours", folder / "test.features.npy", "--probabilities"
    ).splitlines()
    assert with_chances == [f"{said.text}\t{said.log_prob:.4f}" for said in expected]
    twice = predictions(folder / "ours", folder / "test.features.npy", folder / "test.features.npy")
    assert twice == lines(said.text for said in expected) * 2


@pytest.mark.parametrize(
    ("flags", "seed", "options"),
    [
        (["--method", "sample", "--seed", 7], 7, {"method": "sample"}),
        (
            ["--method", "sample", "--temperature", 0.5, "--top-p", 0.8],
            0,
            {"method": "sample", "temperature": 0.5, "top_p": 0.8},
        ),
        (
            ["--method", "mbr", "--samples", 6, "--reward", "edit"],
            0,
            {"method": "mbr", "samples": 6, "reward": NegativeEditDistance()},
        ),
    ],
)
def test_draws_follow_from_the_seed_and_the_number_of_the_image(
    folder, vectors, tmp_path, monkeypatch, flags, seed, options
):
    model = TextGenerator.load(folder / "ours")
    expected = lines(
        model.generate(
            vectors[number - 1 : number], generator=line_generator(seed, number), **options
        )[0].text
        for number in range(1, len(vectors) + 1)
    )
    command = ["predict", folder / "ours", *flags]
    assert well(softq(*command, folder / "test.features.npy")) == expected
    monkeypatch.setattr(captions_of_models, "AT_A_TIME", 2)
    np.save(tmp_path / "a.npy", vectors[:3])
    np.save(tmp_path / "b.npy", vectors[3:])
    assert well(softq(*command, tmp_path / "a.npy", tmp_path / "b.npy")) == expected


def test_no_rows_have_no_captions(folder, tmp_path):
    np.save(tmp_path / "none.npy", np.zeros((0, SIZE), np.float32))
    assert predictions(folder / "ours", tmp_path / "none.npy") == ""


def test_features_that_do_not_fit_leave_nothing_behind(folder, vectors, tmp_path):
    def said(content, *texts, names=None):
        np.save(tmp_path / "f.npy", content)
        (tmp_path / "f.names.txt").unlink(missing_ok=True)
        if names is not None:
            (tmp_path / "f.names.txt").write_text(lines(names))
        # the first file is sound, and yet nothing is said of it
        files = (
            [folder / "test.features.npy", tmp_path / "f.npy"]
            if names is None
            else [tmp_path / "f.npy"]
        )
        for out in ([], ["--out", tmp_path / "out"]):
            result = softq("predict", folder / "ours", *files, *out)
            refused(result, *texts)
            assert result.stdout == ""
        assert not (tmp_path / "out").exists()

    broken = vectors.copy()
    broken[4, 3] = np.nan
    said(broken, "f.npy: ", "in row 5 are not finite")
    said(vectors[::-1] * np.inf, "the features of image '0.jpg'", "not finite", names=IMAGES)
    said(
        vectors[:, :5],
        "f.npy: expected features with 12 numbers for each image, as ",
        "was trained on, got 5",
    )
    said(vectors[0], "f.npy: expected features [images, size]")
    said(np.float32(1), "f.npy: expected features [images, size]")
    said(vectors.astype(int), "expected features as float16, float32 or float64")
    said(vectors, "f.names.txt: expected a name for each of the 7 rows", names=IMAGES[:5])
    (tmp_path / "g.npy").write_text("text")
    refused(softq("predict", folder / "ours", tmp_path / "g.npy"), "cannot read", "g.npy")
    refused(softq("predict", folder / "ours", tmp_path / "none.npy"), "cannot read", "none.npy")
    refused(
        softq("predict", folder / "ours", folder / "named.npy", folder / "test.features.npy"),
        "expected names of images beside all files of features or none, got no ",
        "test.features.names.txt",
    )


def test_what_does_not_go_together(folder, tmp_path):
    features = folder / "test.features.npy"
    refused(
        softq("predict", folder / "ours", stdin="a"),
        "is a captioner, which reads no text: name a file of features (.npy)",
    )
    refused(
        softq("predict", folder / "ours", features, "--plain"),
        "is a captioner",
        "--plain is for taggers and parsers",
    )
    refused(softq("predict", folder / "ours", features, "--decoding", "mbr"), "is a captioner")
    refused(
        softq("predict", folder / "ours", features, "--samples", 3),
        "--samples is for --method mbr, got --method beam",
    )
    refused(
        softq("predict", folder / "ours", features, folder),
        "expected files of features (.npy) or images, got both",
    )
    refused(
        softq("predict", folder / "ours", folder),
        "does not say which encoder made the features",
        "softq data features",
    )
    (tmp_path / "model").write_text("text")
    refused(
        softq("predict", tmp_path / "model", features),
        "is not a model of softq",
    )


# --- images -----------------------------------------------------------------------------------------------


@pytest.fixture
def scenes(tmp_path):
    """Pictures of the built-in world in a folder, and a captioner of them.

    The encoder sees what it saw of the arrays.
    """
    image = pytest.importorskip("PIL.Image")
    pictures = np.stack([render(scene) for scene in SceneWorld().sample(3, seed=0).scenes])
    (tmp_path / "scenes").mkdir()
    for name, picture in zip("bac", pictures, strict=True):
        image.fromarray(picture).save(tmp_path / "scenes" / f"{name}.png")
    seen = scene_features(pictures)
    captioner(tmp_path / "model", 3, features=seen.shape[1], encoder="scenes")
    return tmp_path, seen


def test_images_are_encoded_as_the_captioner_learnt_them(scenes):
    folder, seen = scenes
    expected = [
        f"{name}.png\t{said.text}"
        for name, said in zip(
            "bac", TextGenerator.load(folder / "model").generate(seen), strict=True
        )
    ]
    assert predictions(folder / "model", folder / "scenes") == lines(sorted(expected))
    files = [folder / "scenes" / f"{name}.png" for name in "bac"]
    assert predictions(folder / "model", *files) == lines(expected)


def test_encoding_is_watched(scenes, monkeypatch):
    folder, _ = scenes
    told_of = []

    class Heard(BarWatcher):
        def __init__(self, label, unit):
            self.label = (label, unit)

        def begin(self, examples, done):
            told_of.append((*self.label, "of", examples, done))

        def show(self, total, done):
            told_of.append((*self.label, done, "of", total))

        def advance(self, examples, status):
            told_of.append((*self.label, examples))

    model = captions_of_models.FileCaptioner(folder / "model")
    assert len(list(model.predict_files([folder / "scenes"], Heard))) == 1
    assert told_of[:2] == [("encoding", "images", done, "of", 3) for done in (0, 3)]


def test_images_that_cannot_be_read(scenes):
    folder, _ = scenes
    for name in ("x", "y"):
        (folder / "scenes" / f"{name}.png").write_text("no picture")
    result = softq("predict", folder / "model", folder / "scenes")
    refused(result, "2 images cannot be read: ", "x.png", "y.png")
    assert result.stdout == ""
    refused(softq("predict", folder / "model", folder / "none.png"), "cannot read", "none.png")
    captioner(folder / "other", 3, encoder="scenes")
    refused(
        softq("predict", folder / "other", folder / "scenes" / "a.png"),
        "scenes: expected features of scenes with 12 numbers",
    )


# --- evaluate ---------------------------------------------------------------------------------------------


def scores(model, vectors, truths, **options):
    references = [[model.vocabulary.plain(text) for text in several] for several in truths]
    return (
        caption_statistics([said.words for said in model.generate(vectors, **options)], references),
        references,
    )


def test_scores_of_a_model(folder, vectors):
    rows, references = scores(TextGenerator.load(folder / "ours"), vectors, TRUTHS)
    facts = evaluated(folder / "ours", folder / "test.captions.tsv")
    for name, metric in CAPTION_METRICS.items():
        assert facts[name] == pytest.approx(float(metric(rows.sum(0))))
    assert facts["average_reward"] > 0
    assert facts["agreement"] == pytest.approx(reference_agreement(references))
    assert (facts["images"], facts["references"], facts["decoding"]) == (7, 14, "beam of 3")
    assert facts["perplexity"] > 1
    assert facts["features"] == str(folder / "test.features.npy")
    named = evaluated(
        folder / "ours", folder / "test.captions.tsv", "--features", folder / "named.npy"
    )
    assert {name: named[name] for name in CAPTION_METRICS} == pytest.approx(
        {name: facts[name] for name in CAPTION_METRICS}
    )
    shown = " ".join(well(softq("evaluate", folder / "ours", folder / "test.captions.tsv")).split())
    assert "test.captions.tsv: 7 images, 14 references" in shown
    assert f"maximum reward {facts['max_reward']:.4f}" in shown
    assert f"average reward of one reference by another {facts['agreement']:.4f}" in shown
    greedy = evaluated(folder / "ours", folder / "test.captions.tsv", "--method", "greedy")
    rows, _ = scores(TextGenerator.load(folder / "ours"), vectors, TRUTHS, method="greedy")
    assert greedy["cider_d"] == pytest.approx(float(CAPTION_METRICS["cider_d"](rows.sum(0))))


def test_a_split_of_json(folder, vectors):
    rows, _ = scores(TextGenerator.load(folder / "ours"), vectors[4:], TRUTHS[4:])
    facts = evaluated(
        folder / "ours", folder / "all.json", "--split", "test", "--features", folder / "named.npy"
    )
    assert (facts["images"], facts["split"]) == (3, "test")
    assert facts["average_reward"] == pytest.approx(
        float(CAPTION_METRICS["average_reward"](rows.sum(0)))
    )
    arguments = [
        "evaluate",
        folder / "ours",
        folder / "all.json",
        "--features",
        folder / "named.npy",
    ]
    assert "all.json, test: 3 images" in well(softq(*arguments, "--split", "test"))
    refused(
        softq(*arguments, "--split", "train"),
        "all.json: expected images of the split 'train', got 'test', 'val'",
    )


def test_captions_that_are_there_already_have_the_scores_of_their_model(folder, tmp_path):
    gold = folder / "test.captions.tsv"
    expected = evaluated(folder / "ours", gold)
    for model in ("ours", "theirs"):
        (tmp_path / model).write_text(predictions(folder / model, folder / "test.features.npy"))
    (tmp_path / "named").write_text(
        predictions(folder / "ours", folder / "named.npy") + "other.jpg\tA stranger.\n"
    )
    (tmp_path / "below").write_text(
        "".join(f"some/{line}\n" for line in (tmp_path / "named").read_text().splitlines())
    )
    for name in ("ours", "named", "below"):
        facts = evaluated("--predictions", tmp_path / name, gold)
        assert {name: facts[name] for name in CAPTION_METRICS} == pytest.approx(
            {name: expected[name] for name in CAPTION_METRICS}
        ), name
        assert (facts["perplexity"], facts["predictions"], facts["images"]) == (
            None,
            str(tmp_path / name),
            7,
        )
    of_json = evaluated("--predictions", tmp_path / "named", folder / "all.json")
    assert of_json["cider_d"] == pytest.approx(expected["cider_d"])
    assert (
        evaluated("--predictions", tmp_path / "named", folder / "all.json", "--split", "val")[
            "images"
        ]
        == 4
    )
    against = evaluated(folder / "ours", gold, "--against", folder / "theirs")["against"]
    found = evaluated("--predictions", tmp_path / "named", gold, "--against", tmp_path / "theirs")[
        "against"
    ]
    for name in CAPTION_METRICS:
        assert found[name]["difference"] == pytest.approx(against[name]["difference"])


def test_a_caption_is_of_one_image(tmp_path):
    (tmp_path / "gold.tsv").write_text("x/a.jpg\tA dog.\ny/a.jpg\tRain.\n")
    (tmp_path / "said").write_text("a.jpg\ta dog\nz.jpg\train\n")
    result = softq("evaluate", "--predictions", tmp_path / "said", tmp_path / "gold.tsv")
    refused(
        result,
        "expected a caption for the image 'y/a.jpg' (",
        "line 2), got one for 'x/a.jpg' as well: 'a.jpg'",
    )


def test_what_counts_as_a_word(tmp_path):
    (tmp_path / "gold.tsv").write_text("a.png\tA Dog, there.\nb.png\tRain\n")
    (tmp_path / "said").write_text("a dog, There.\n<unk> rain\n")
    facts = evaluated("--predictions", tmp_path / "said", tmp_path / "gold.tsv")
    assert (facts["exact_match"], facts["length_ratio"], facts["agreement"]) == (0.5, 7 / 6, None)
    split = evaluated(
        "--predictions", tmp_path / "said", tmp_path / "gold.tsv", "--tokenizer", "space"
    )
    assert (split["exact_match"], split["length_ratio"]) == (0.5, 5 / 4)
    assert "of one reference by another" not in well(
        softq("evaluate", "--predictions", tmp_path / "said", tmp_path / "gold.tsv")
    )


@pytest.mark.parametrize(
    ("said", "texts"),
    [
        (
            lines("abcdef"),
            ["expected a caption for each of the 7 images of ", "one per line, got 6 in "],
        ),
        (
            lines(f"{image}\ta" for image in IMAGES[:6]),
            ["said: expected a caption for the image '6.jpg' (", "line 7), got none"],
        ),
        (
            lines(f"{image}\ta" for image in [*IMAGES, "2.jpg"]),
            ["said, line 8: expected each image once, got '2.jpg' again", "line 3"],
        ),
        (
            lines(f"{image}\ta" for image in IMAGES) + "b\n",
            ["said, line 8: expected an image, a tab and a caption, got 1 columns"],
        ),
        (
            lines(f"{image}\ta\t-1" for image in IMAGES),
            ["said, line 1: expected an image, a tab and a caption, got 3 columns"],
        ),
        (
            lines(f"{folder}/{image}\ta" for image in IMAGES for folder in "pq"),
            ["'0.jpg'", "got 2: 'p/0.jpg', 'q/0.jpg'"],
        ),
    ],
)
def test_predictions_that_do_not_fit(folder, tmp_path, said, texts):
    (tmp_path / "said").write_text(said)
    refused(
        softq("evaluate", "--predictions", tmp_path / "said", folder / "test.captions.tsv"), *texts
    )
    (tmp_path / "good").write_text(lines("abcdefg"))
    compared = [
        "--predictions",
        tmp_path / "good",
        folder / "test.captions.tsv",
        "--against",
        tmp_path / "said",
    ]
    refused(softq("evaluate", *compared), *texts)


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["OURS"], ["expected a model and a file"]),
        (["OURS", "TSV", "TSV"], ["is scored on one file, got 2"]),
        (["OURS", "TSV", "--scheme", "bio"], ["is a captioner: leave it out"]),
        (
            ["OURS", "JSON"],
            [
                "all.json: expected features of its images in ",
                "all.features.npy",
                "--features FILE",
            ],
        ),
        (["OURS", "TSV", "--split", "val"], ["expected Karpathy's JSON"]),
        (
            ["OURS", "TSV", "--features", "SHORT"],
            ["short.npy: expected 7 rows, one for each image, got 3, none for image '3.jpg'"],
        ),
        (
            ["OURS", "TSV", "--features", "OTHER"],
            ["other.npy: expected features with 12 numbers for each image, as "],
        ),
        (["OURS", "EMPTY"], ["empty.tsv, line 2: ", "'1.jpg' without a caption"]),
        (
            ["OURS", "TSV", "--against", "CASED"],
            ["test.captions.tsv, line 1: ", "count words differently", "--predictions"],
        ),
        (
            ["OURS", "TSV", "--against", "TAGGER"],
            ["is a captioner: expected another one", "a tagger"],
        ),
        (
            ["OURS", "TSV", "--tokenizer", "space"],
            ["--tokenizer is for --predictions of translators"],
        ),
        (["TAGGER", "TSV", "--features", "SHORT"], ["--features is for captioners, and "]),
        (["TAGGER", "TSV", "--split", "val"], ["--split is for captioners"]),
        (["--predictions", "TSV", "TSV", "TSV"], ["holds captions: expected one such file, got 2"]),
        (
            ["--predictions", "TSV", "TSV", "--features", "SHORT"],
            ["--features is for captioners", "holds predictions"],
        ),
        (["--predictions", "TSV", "TEXT", "--split", "val"], ["--split is for captioners"]),
        (["--predictions", "TSV", "TSV", "--beam", "3"], ["--beam is for translators"]),
    ],
)
def test_what_cannot_be_scored(folder, vectors, tmp_path, arguments, texts):
    np.save(tmp_path / "short.npy", vectors[:3])
    np.save(tmp_path / "other.npy", vectors[:, :5])
    (tmp_path / "empty.tsv").write_text("0.jpg\tA dog.\n1.jpg\t\n")
    (tmp_path / "text").write_text("a\nb\n")
    captioner(tmp_path / "cased", 1, lowercase=False)
    CRFTagger(**FAST).fit([["a"]], [["O"]]).save(tmp_path / "tagger")
    files = {
        "short": "short.npy",
        "other": "other.npy",
        "empty": "empty.tsv",
        "text": "text",
        "cased": "cased",
        "tagger": "tagger",
    }
    named = {
        "OURS": folder / "ours",
        "TSV": folder / "test.captions.tsv",
        "JSON": folder / "all.json",
    }
    named |= {name.upper(): tmp_path / file for name, file in files.items()}
    refused(softq("evaluate", *(named.get(argument, argument) for argument in arguments)), *texts)


def test_captions_of_these_tests_are_what_they_seem(folder):
    assert read_captions(folder / "test.captions.tsv").captions == TRUTHS
