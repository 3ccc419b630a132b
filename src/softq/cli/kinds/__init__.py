"""The kinds of models and files that commands know. Each is one declaration here, and one module that is imported when it is needed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from softq.cli.options import option
from softq.errors import DataError

Method = Literal["beam", "greedy", "sample", "mbr"]
"""How texts are chosen from their distribution."""


@dataclass(frozen=True)
class Options:
    """Options that some kinds of models or files take and others do not; each at its default where it is not given."""

    text: bool = option(
        False,
        "Read running text, a sentence per line, and split words from punctuation. Standard input"
        " and .txt files that look like text are read so without being asked.",
        "--text",
    )
    plain: bool = option(
        False,
        "Read text that is split into words already: a sentence per line, words by spaces.",
        "--plain",
    )
    columns: bool = option(
        False, "Read columns, even where they look like running text.", "--columns"
    )
    tagger: Path | None = option(
        None,
        "Tag parts of speech with this model first, a run folder of `softq train tag`, where MODEL"
        " needs them and the input is text.",
        metavar="MODEL",
    )
    decoding: Literal["viterbi", "mode", "mbr"] | None = option(
        None,
        "Choose viterbi (taggers) or mode (parsers), the most probable sequence or tree; or mbr,"
        " the labels or heads with the most expected correct ones.  [default: the model's]",
    )
    entity_weight: float | None = option(
        None,
        "Decode for what a right entity label earns where a right O earns 1: above 1 more entities"
        " are found, below 1 fewer (`softq tune` chooses it).",
        "--entity-weight",
    )
    scheme: Literal["iob1", "bio", "bioes"] | None = option(
        None, "Set the tag scheme of the file.  [default: the one that its labels follow]"
    )
    annotators: str = option(
        "0",
        "Read the last N columns, or all but the first, as annotators' labels; not needed where"
        " lines `# annotators = …` name them.  [default: 0]",
        metavar="N|all",
    )
    probabilities: bool = option(
        False,
        "Add the marginal probability of each label as a column, of each head as p=… in MISC (not"
        " in CoNLL-X), of each class as a column, or the log-probability of each text after a tab.",
        "--probabilities",
    )
    method: Method | None = option(
        None,
        "Choose a search: beam; greedy, the most probable token at each step; sample; or mbr, the"
        " sample with the highest expected reward.  [default: beam]",
    )
    beam: int | None = option(None, "Set the beam size.  [default: the model's]", min=1)
    samples: int | None = option(
        None, "Set the number of samples that mbr chooses from.  [default: 32]", min=1
    )
    reward: str | None = option(
        None,
        "Choose the reward of mbr: bleu, rouge (ROUGE-L) or edit (minus the edit distance); for"
        " text models every reward they can be trained for, such as chrf or words:bleu.  [default:"
        " bleu, or that of the run]",
    )
    seed: int | None = option(
        None,
        "Set the random seed of sample and mbr; samples for a line depend on it and on the line's"
        " number.  [default: 0]",
    )
    temperature: float | None = option(
        None, "Divide log-probabilities of tokens by this for sample and mbr.  [default: 1]"
    )
    top_p: float | None = option(
        None,
        "Sample from the smallest set of tokens whose probability is at least this.  [default: 1]",
    )
    length_penalty: float | None = option(
        None,
        "Rank hypotheses of a beam by log-probability over length to this power; 0 prefers short"
        " ones.  [default: the model's]",
    )
    batch_size: int | None = option(
        None, "Set the number of sources in a batch.  [default: the recipe's, or 64]", min=1
    )
    against_method: Method | None = option(
        None,
        "Choose the search of the model of --against, which may be MODEL itself: --method mbr"
        " --against MODEL --against-method beam.  [default: that of MODEL]",
    )
    tokenizer: Literal["unicode", "space"] | None = option(
        None,
        "Count words of --predictions that end at punctuation (unicode), or at white space alone"
        " (space).  [default: unicode]",
    )
    features: Path | None = option(
        None,
        "Read the features of the images, a row each, from this file.  [default: x.features.npy"
        " beside x.captions.tsv]",
        metavar="FILE.npy",
        dir_okay=False,
    )
    split: Literal["train", "val", "test"] | None = option(
        None, "Read this split of Karpathy's JSON; restval belongs to train.  [default: all]"
    )


_SEARCH = ("method", "beam", "samples", "reward", "seed")
_WRITING = (*_SEARCH, "temperature", "top_p", "length_penalty")


@dataclass(frozen=True)
class Kind:
    """A kind of model, and of the files it is trained on.

    Attributes:
        name: of one model.
        module: of this package, with what the commands call: ``load`` (a model), ``read_gold`` and ``score_predictions``, and for
            files ``recognise``, ``count``, ``show`` and ``check``.
        format: how the format of its saved file begins; "" of text models, whose folder is Transformers'.
        layout: of its files, as ``--format`` of `softq data` names it; "" where another kind has the same.
        predict: options of `softq predict`, fields of `Options`.
        evaluate: options of `softq evaluate MODEL FILE`.
        predictions: options of `softq evaluate --predictions`.
        data: options of `softq data`.

    """

    name: str
    module: str
    format: str
    layout: str
    predict: tuple[str, ...]
    evaluate: tuple[str, ...]
    predictions: tuple[str, ...] = ()
    data: tuple[str, ...] = ()

    @property
    def code(self) -> Any:
        """The module."""
        return import_module(f"softq.cli.kinds.{self.module}")


TAGGER = Kind(
    "tagger",
    "tagger",
    "softq tagger ",
    "columns",
    predict=("text", "plain", "columns", "tagger", "decoding", "entity_weight", "probabilities"),
    evaluate=("scheme", "decoding", "entity_weight"),
    predictions=("scheme",),
    data=("annotators", "scheme"),
)
PARSER = Kind(
    "parser",
    "parser",
    "softq parser ",
    "conllu",
    predict=("text", "plain", "tagger", "decoding", "probabilities"),
    evaluate=("decoding",),
)
CLASSIFIER = Kind(
    "classifier",
    "classifier",
    "softq classifier ",
    "",
    predict=("probabilities",),
    evaluate=(),
)
TRANSLATOR = Kind(
    "translator",
    "sentences",
    "softq translator ",
    "bitext",
    predict=(*_WRITING, "probabilities"),
    evaluate=_SEARCH,
    predictions=("tokenizer",),
)
CAPTIONER = Kind(
    "captioner",
    "captioner",
    "softq captioner ",
    "captions",
    predict=(*_WRITING, "probabilities"),
    evaluate=(*_SEARCH, "features", "split"),
    predictions=("tokenizer", "split"),
    data=("split", "features"),
)
TEXT_MODEL = Kind(
    "text model of Transformers",
    "text_model",
    "",
    "",
    predict=(*_WRITING, "batch_size"),
    evaluate=(*_SEARCH, "batch_size", "against_method"),
)
KINDS = (TAGGER, PARSER, CLASSIFIER, TRANSLATOR, CAPTIONER, TEXT_MODEL)


def who_takes(name: str, *commands: str) -> str:
    """The kinds that take an option of any of these commands, fields of `Kind`.

    >>> who_takes("plain", "predict")
    'taggers and parsers'
    """
    takers = [
        kind.name.replace(" model", " models") if kind is TEXT_MODEL else f"{kind.name}s"
        for kind in KINDS
        if any(name in getattr(kind, command) for command in commands)
    ]
    return " and ".join(filter(None, (", ".join(takers[:-1]), takers[-1])))


def panels(*commands: str) -> dict[str, str]:
    """The options of commands, each with the title of its panel in ``--help``: the kinds that take it."""
    named = dict.fromkeys(
        name for kind in KINDS for command in commands for name in getattr(kind, command)
    )
    return {name: f"Options of {who_takes(name, *commands)}" for name in named}


def find_kind(path: Path) -> Kind:
    """What kind of model a run folder, a file or a folder of Transformers holds."""
    from softq.cli.recipes import names_lm
    from softq.formats.file_checks import in_one_line, notes_in, read_tensors
    from softq.lab.run import RECIPE

    if path.is_dir() and (names_lm(str(path / RECIPE)) or (path / "config.json").is_file()):
        return TEXT_MODEL
    try:
        file = find_model(path)
        if not file.exists():
            raise DataError("there is no such file")
        found = notes_in(read_tensors(file).tensors, "about", "model").get("format")
        for kind in KINDS:
            if kind.format and isinstance(found, str) and found.startswith(kind.format):
                return kind
        raise DataError(f"its format is {in_one_line(repr(found))}")
    except DataError as error:
        raise DataError(
            f"{path} is not a model of softq ({error}): expected a run folder of softq train (a"
            " tagger, parser, classifier, translator, captioner or text model), a file of CRFTagger.save or"
            " DependencyParser.save, or a folder of save_pretrained"
        ) from None


def find_model(path: Path) -> Path:
    """The file of a model: the best one of a run folder, or the file itself."""
    from softq.lab.run import BEST
    from softq.lab.sweep import RUNS, SWEEP

    if (path / SWEEP).is_file():
        raise DataError(
            f"{path} is a sweep of many models: name one of the run folders in {path / RUNS}"
        )
    if path.is_dir() and not (path / BEST).is_file():
        raise DataError(
            f"{path} holds no model: expected {BEST} in it, which a run of softq train has after"
            " its first epoch"
        )
    return path / BEST if path.is_dir() else path
