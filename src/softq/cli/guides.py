"""What the commands that train say of each task: what it is, what goes in, examples, what comes next."""

from __future__ import annotations

from typing import NamedTuple


class _Guide(NamedTuple):
    """A task as ``--help`` explains it, in Markdown.

    Attributes:
        one: what a single model of it is.
        many: several of them.
        data: what it learns from, and where that comes from.
        after: what to do with a trained model.
        page: of the documentation.
        train: examples of `softq train`, as lines of a shell.
        sweep: likewise of `softq sweep`.
        reproduce: likewise of `softq reproduce`.

    """

    one: str
    many: str
    data: str
    after: str
    page: str
    train: str
    sweep: str
    reproduce: str


GUIDES = {
    "classification": _Guide(
        one=(
            "a small network that decides between four classes of different worth, the paper's"
            " first experiment"
        ),
        many="small networks that decide between four classes of different worth",
        data=(
            "The data follow from `--data.seed`: points of a square with labels from a known"
            " distribution, so that the best expected reward is known (`softq theory`). All models"
            " of a sweep are trained at once, as one."
        ),
        after="`softq report` draws what it learnt beside the Bayes rule.",
        page="docs/classification.md",
        train="""\
softq train classification --objective sqdml --tau 1.1 --out runs/first
softq train classification --objective raml --tau 2.4 --inputs 10000 --hidden 16 --out runs/small
softq report runs --out report.html""",
        sweep="""\
softq sweep classification --tau 0.5:3:0.5 --seed 0:4 --out sweeps/tau
softq sweep classification --tau 2 --over learning-rate=0.03,0.1,0.3 --over "hidden=8,8;16" --out sweeps/rates
softq report sweeps --out report.html""",
        reproduce="""\
softq reproduce classification                # 100,000 training inputs, two CPU cores
softq reproduce classification --inputs 10000 --out reproduction/quick
softq reproduce classification --scale paper  # 1,000,000; meant for a GPU""",
    ),
    "classifier": _Guide(
        one="a classifier of your own data, a CSV file, with a table of what errors cost",
        many="classifiers of your own data",
        data=(
            "A CSV file has a header, columns of numbers and a column of labels, the last one or"
            " `--label-column`. `--costs` is a CSV file with a row for each decision and a column for"
            " each right class, or a TOML file with a table for each decision."
        ),
        after=(
            "`softq predict RUN new.csv` adds the decision as a column, `softq evaluate RUN"
            " test.csv` scores it."
        ),
        page="docs/costs.md",
        train="""\
softq train classifier --train train.csv --dev dev.csv --costs costs.csv --out runs/costs
softq train classifier --train train.csv --objective raml --tau 2 --out runs/raml""",
        sweep="""\
softq sweep classifier --train train.csv --dev dev.csv --tau 0.5,2,8 --out sweeps/classifier""",
        reproduce="",
    ),
    "captioning": _Guide(
        one="a captioner: a sentence for an image, learnt from several people's captions of each",
        many="captioners",
        data=(
            "Captions are lines of image, tab and caption, or Karpathy's JSON. Features of the"
            " images stand beside them, `train.features.npy` for `train.captions.tsv`; `softq data"
            " features` makes them. Without `--train`, scenes of a built-in world are rendered,"
            " whose correct captions are all known. The reward is sentence BLEU; see `[candidates]`."
        ),
        after=(
            "`softq predict RUN FEATURES` captions images, `softq evaluate RUN test.captions.tsv`"
            " scores the captions."
        ),
        page="docs/captioning.md",
        train="""\
softq train captioning --train train.captions.tsv --dev dev.captions.tsv --out runs/ml
softq train captioning --train train.captions.tsv --dev dev.captions.tsv --objective sqdml --tau 0.05 --sampler recombined --out runs/sqdml
softq evaluate runs/sqdml test.captions.tsv --against runs/ml
softq predict runs/sqdml test.features.npy""",
        sweep="""\
softq sweep captioning --train train.captions.tsv --dev dev.captions.tsv --halve-dev --objective ml,sqdml --tau 0.05 --out sweeps/images
softq report sweeps/images --out report.html""",
        reproduce="""\
softq reproduce captioning --jobs 2  # captioners of rendered scenes
softq reproduce captioning --scale paper --train train.captions.tsv --dev dev.captions.tsv --test test.captions.tsv""",
    ),
    "ner": _Guide(
        one=(
            "a tagger: a label for each word, such as the parts of named entities; one annotator or"
            " a crowd"
        ),
        many="taggers",
        data=(
            "Column files (CoNLL): a word on each line, its label in the last column, blank lines"
            " between sentences. Several annotators are columns of one file (`--annotators`), and"
            " SQDML learns from all of them. Without `--train`, sentences are sampled from a built-in"
            " world, each with several imperfect annotators. The reward is the number of right"
            " labels."
        ),
        after=(
            "`softq predict RUN FILES` labels other files, `softq evaluate RUN FILE` scores the"
            " labels."
        ),
        page="docs/tagging.md",
        train="""\
softq train ner --train train.conll --dev dev.conll --out runs/ml
softq train ner --train train.conll --dev dev.conll --objective raml --tau 0.1 --out runs/names
softq train ner --train crowd.conll --annotators all --dev dev.conll --objective sqdml --tau 0.2 --out runs/crowd
softq evaluate runs/names test.conll --against runs/ml
softq predict runs/names new.conll --out tagged.conll""",
        sweep="""\
softq sweep ner --train train.conll --dev dev.conll --test test.conll --objective ml,raml --tau 0.2,0.4 --over c2=0.1,1 --out sweeps/names
# without a dev file
softq sweep ner --train train.conll --folds 5 --test test.conll --objective ml,raml --tau 0.2 --out sweeps/folds
softq report sweeps --out report.html""",
        reproduce="""\
# a generated language that several people have labelled
softq reproduce ner --jobs 2
# CoNLL-2003, of which you need a copy
softq reproduce ner --scale paper --train eng.train --test eng.testb""",
    ),
    "tag": _Guide(
        one="a tagger of any labels, such as parts of speech, scored by token accuracy",
        many="taggers of any labels",
        data=(
            "Column files as for `ner`: a word on each line, its label in the last column, blank"
            " lines between sentences. Labels need not be entity tags, and none are forbidden;"
            " `--scheme bio` says that they are. The reward is the number of right labels."
        ),
        after=(
            "`softq predict RUN FILES` labels other files, `softq evaluate RUN FILE` scores the"
            " labels."
        ),
        page="docs/tagging.md",
        train="""\
softq train tag --train train.conll --dev dev.conll --out runs/tags
softq evaluate runs/tags test.conll
softq predict runs/tags new.conll --out tagged.conll""",
        sweep="""\
softq sweep tag --train train.conll --dev dev.conll --test test.conll --objective ml,raml --tau 0.2 --out sweeps/tags
softq report sweeps/tags --out report.html""",
        reproduce="",
    ),
    "parsing": _Guide(
        one="a dependency parser: the head of each word, and its relation",
        many="parsers",
        data=(
            "Treebanks in CoNLL-U, or CoNLL-X. Trees without crossing arcs by default, trees of any"
            " shape with `--spanning`. Without `--train`, sentences are sampled from a built-in"
            " grammar. The reward is the number of right heads."
        ),
        after=(
            "`softq predict RUN FILES` parses other files, `softq evaluate RUN FILE` scores the"
            " trees."
        ),
        page="docs/parsing.md",
        train="""\
softq train parsing --train train.conllu --dev dev.conllu --out runs/ml
softq train parsing --train train.conllu --dev dev.conllu --objective raml --tau 0.2 --out runs/trees
softq evaluate runs/trees test.conllu
softq predict runs/trees new.conllu --out parsed.conllu""",
        sweep="""\
softq sweep parsing --train train.conllu --dev dev.conllu --test test.conllu --objective ml,raml --tau 0.2,0.4 --jobs 2 --out sweeps/trees
# no test file
softq sweep parsing --train train.conllu --dev dev.conllu --halve-dev --objective ml,raml --tau 0.2 --out sweeps/half
softq report sweeps --out report.html""",
        reproduce="""\
# a generated language
softq reproduce parsing --jobs 2
# your own treebank
softq reproduce parsing --scale paper --train train.conllu --dev dev.conllu --test test.conllu""",
    ),
    "translation": _Guide(
        one=(
            "a translator, or anything else that writes a sentence for a sentence, toward BLEU or"
            " another reward"
        ),
        many="translators",
        data=(
            "Lines of source, tab and reference, several lines or several tabs for several"
            " references; or files that belong together line by line (`--data.train train.de"
            " --train-references train.en`). Without `--train`, sentences are sampled from two"
            " built-in languages, whose valid translations are all known. The reward is sentence BLEU;"
            " see `[candidates]`."
        ),
        after=(
            "`softq predict RUN` translates line by line, `softq evaluate RUN test.tsv` scores"
            " translations."
        ),
        page="docs/translation.md",
        train="""\
softq train translation --train train.tsv --dev dev.tsv --out runs/ml
softq train translation --train train.tsv --dev dev.tsv --objective raml --tau 0.2 --out runs/mt
softq train translation --train train.tsv --dev dev.tsv --objective raml --tau 0.2 --start runs/ml --out runs/further
softq evaluate runs/mt test.tsv --against runs/ml
echo "Das passiert." | softq predict runs/mt""",
        sweep="""\
softq sweep translation --train train.tsv --dev dev.tsv --test test.tsv --objective ml,raml --tau 0.2,0.4 --jobs 2 --out sweeps/mt
softq report sweeps/mt --out report.html""",
        reproduce="""\
# two generated languages
softq reproduce translation --jobs 2
softq reproduce translation --scale paper --train train.tsv --dev dev.tsv --test test.tsv
# the same files in a folder
softq reproduce translation --scale paper --data DIR --out reproduction/folder""",
    ),
    "lm": _Guide(
        one=(
            "a model of 🤗 Transformers (T5, BART, Marian, GPT-2, Llama, …), fine-tuned toward BLEU"
            " or another reward"
        ),
        many="models of Transformers",
        data=(
            "Lines of source, tab and reference, with further tabs and references where there are"
            " more; `.txt`, a prompt on each line, without references; or `.jsonl`, an object on each"
            " line with `source` or `prompt` and perhaps `references`, `candidates` and"
            " `candidate_rewards`. `--model` is a run folder, a folder of"
            " `save_pretrained` or the name of a model of Transformers; `--from-scratch t5-small`"
            " makes a T5 and a tokenizer instead. Usually, train by likelihood first, and toward the"
            " reward from the best model of that run. Without `--train`, sentences are sampled from"
            " two built-in languages. It needs `pip install 'softq[transformers]'`."
        ),
        after=(
            "`softq predict RUN` writes a text for each line, `softq evaluate RUN test.tsv` scores"
            " them. The best model is in `RUN/best`, as `from_pretrained` reads it."
        ),
        page="docs/transformers.md",
        train="""\
softq train lm --model google-t5/t5-small --train train.tsv --dev dev.tsv --template "translate German to English: {}" --out runs/ml
softq train lm --model runs/ml --train train.tsv --dev dev.tsv --objective raml --tau 0.2 --sampler ngram+model --out runs/raml
softq train lm --from-scratch t5-small --train train.tsv --dev dev.tsv --optimizer adafactor --learning-rate 0.03 --epochs 20 --out runs/t5
# a method by its name, a reward in Python, prompts without references
softq train lm --model runs/ml --train german.txt --dev dev.tsv --preset tpo --reward-function rewards.py:right_length --out runs/tpo
# toward what the model's own samples agree on, anew in every epoch
softq train lm --model runs/ml --train german.txt --dev dev.tsv --distill-samples 32 --distill-reward words:chrf --out runs/mbr
softq evaluate runs/raml test.tsv --against runs/ml
# does it save the cost of minimum Bayes risk?
softq evaluate runs/raml test.tsv --against runs/ml --against-method mbr
echo "Das passiert." | softq predict runs/raml""",
        sweep="",
        reproduce="",
    ),
}


_HEADLINES = {
    "train": "Train {one}.",
    "sweep": (
        "Train {many} over a grid of objectives, temperatures, seeds and other keys; choose on"
        " development data; compare with ML."
    ),
    "reproduce": "Run the paper's experiment with {many}, and write one page of the results.",
}
_FLAGS = (
    "**Flags.** The panels below are the tables of the recipe: `--epochs 3` is `epochs = 3` under"
    " `[training]`. Yes-or-no keys are `--key` and `--no-key`. A file of them to start from is"
    " `softq train {task} --dry-run > mine.toml`, and `softq {command} mine.toml` reads it."
)
_FLAGS_OF_EXPERIMENTS = (
    "**Flags.** The panels below are the tables of the task's recipe; the experiment's own settings"
    " are in `recipes/`."
)


def guide(command: str, task: str) -> str:
    """The help of `softq COMMAND TASK`, in Markdown; "" of a task that is not softq's own."""
    about = GUIDES.get(task)
    if about is None:
        return ""
    return "\n\n".join(
        [
            _HEADLINES[command].format(one=about.one, many=about.many),
            about.data,
            f"**Examples**\n\n```sh\n{getattr(about, command)}\n```",
            f"**Next.** {about.after} {about.page} tells all of it.",
            (
                _FLAGS_OF_EXPERIMENTS
                if command == "reproduce"
                else _FLAGS.format(task=task, command=command)
            ),
        ]
    )
