"""`softq bench`: the benchmarks of the source tree."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, Literal

import typer

import softq
from softq.cli.options import REQUIRED, declare, flag

bench = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", add_completion=False)


@bench.callback()
def _bench() -> None:
    """Measure how fast softq is on this machine, beside other packages.

    Contenders take turns in one process, so that a slow spell of the machine hits all of them, and what they compute is checked to agree
    before it is timed. Peers are optional: `make bench` installs them and runs everything; one that is missing is left out. The benchmarks
    come with the source tree, not with the installed package.

    **Examples**

    ```sh
    # losses and gradients, a quick look
    softq bench core --rounds 3 --device cpu
    # not speed but accuracy: what sampled candidates cost
    softq bench estimators
    ```
    """


def _rounds(default: int, what: str = "Set the number of turns of each contender") -> Parameter:
    return declare("rounds", int, default, f"{what}; the figure is the median.", min=1)


def _corpora(about: str) -> Parameter:
    return declare("data", Path | None, None, about, file_okay=False, exists=True)


_DEVICE = declare(
    "device",
    Literal["cpu", "cuda"] | None,
    None,
    "Choose the device.  [default: the GPU if there is one]",
)
_PRECISION = declare(
    "precision",
    str,
    "bf16",
    "Set the precision of matrix products on a GPU: float32, tf32 or bf16.",
)
_AS_JSON = declare("as_json", bool, False, "Print one JSON object and nothing else.", "--json")
_BENCHMARKS: dict[str, tuple[str, tuple[Parameter, ...]]] = {
    "core": (
        """Time loss and gradient of chains and trees against pytorch-crf, torch-struct and SuPar.

    The losses of all are checked to agree before they are timed. `make bench` installs the peers; one that is missing is left out.

    **Examples**

    ```sh
    softq bench core                          # the whole table, in a few minutes
    softq bench core --rounds 3 --device cpu  # a quick look
    softq bench core --json > core.json       # for a program
    ```
    """,
        (
            _rounds(15),
            _DEVICE,
        ),
    ),
    "rewards": (
        """Time rewards and samplers against sacreBLEU, fast-bleu, rapidfuzz and a copy of memory, on two CPU threads.

    The table says which bars are reached; they are meant for a machine that does nothing else. `make bench` installs the peers; one
    that is missing is left out.

    **Examples**

    ```sh
    softq bench rewards                        # the whole table, in a minute or two
    softq bench rewards --rounds 3             # a quick look
    softq bench rewards --json > rewards.json  # for a program
    ```
    """,
        (_rounds(15),),
    ),
    "estimators": (
        """Measure bias and error of the estimators of a target on candidates, on a space small enough to sum over.

    Use it to see what `--estimator` of translators and captioners trades; it is the source of the figures in docs/estimators.md.

    **Examples**

    ```sh
    softq bench estimators                        # the whole table, in half a minute
    softq bench estimators --plot estimators.svg  # with a picture
    ```
    """,
        (
            declare(
                "repeats",
                int,
                2000,
                "Set the number of candidate sets for each line of the table.",
                min=2,
            ),
            declare(
                "plot",
                Path | None,
                None,
                "Draw bias and error there (.svg or .png; needs matplotlib).",
                dir_okay=False,
            ),
        ),
    ),
    "classifier": (
        """Compare the decisions of RewardClassifier at its defaults with those of scikit-learn's classifiers.

    Four sets that come with scikit-learn, each with a table of costs, and three that come with empulse, if it is installed, whose costs
    differ from row to row: the figure is the mean cost of a decision on held-out rows.

    **Examples**

    ```sh
    softq bench classifier              # the whole table, in a few minutes
    softq bench classifier --repeats 1  # a quick look
    ```
    """,
        (
            declare("folds", int, 5, "Set the number of folds of the cross-validation.", min=2),
            declare(
                "repeats",
                int,
                2,
                "Repeat the cross-validation this often, with other folds.",
                min=1,
            ),
            declare("rows", int, 10_000, "Use so many rows of each set at most.", min=100),
        ),
    ),
    "conformal": (
        """Measure the coverage of conformal sets, their sizes, and calibration errors on real corpora.

    A tagger or parser is trained on a part of train; of the development set, a random half calibrates and the other half measures.

    **Examples**

    ```sh
    # DIR holds broad_twitter/, wnut17/ and ud_english_ewt/
    softq bench conformal --data DIR
    softq bench conformal --data DIR --splits 2 --sentences 500  # a quick look
    ```
    """,
        (
            declare(
                "data",
                Path | None,
                None,
                "Read the corpora from this folder.  [default: $SOFTQ_DATA, else ../shared/data]",
                metavar="DIR",
                file_okay=False,
            ),
            declare("sentences", int, 4000, "Train on so many sentences at most.", min=1),
            declare("splits", int, 20, "Split the development set so often.", min=1),
            declare("most", int, 64, "Let a set of whole outputs hold so many at most.", min=1),
        ),
    ),
    "grid": (
        """Time the training of many small networks as one grid against training them one after another in plain torch.

    Contenders take turns on the same steps, and their weights are checked to agree. Also measured: how time grows with the inputs and
    memory with the epochs, and on a GPU the share of its peak.

    **Examples**

    ```sh
    softq bench grid                # the whole table, in a minute
    softq bench grid --device cuda  # the sizes of the paper on a GPU
    ```
    """,
        (
            _rounds(7),
            _DEVICE,
        ),
    ),
    "ner": (
        """Time the training of a feature CRF against python-crfsuite, and with `--data` all else that a tagger does.

    Both sides get the same features; CRFsuite's time is an L-BFGS iteration by its own log. On real corpora: training from file to saved
    model, the same optimum as CRFsuite's, extraction of features, and tagging.

    **Examples**

    ```sh
    softq bench ner                               # one iteration, in half a minute
    softq bench ner --data DIR --json > ner.json  # everything, in some minutes
    ```
    """,
        (
            _rounds(7, "Set the number of iterations that are timed"),
            _corpora("Measure on real corpora too: a folder with broad_twitter/ and wnut17/."),
        ),
    ),
    "parsing": (
        """Time a log-linear parser: a pass over the data by ML and by RAML, a whole training, and parsing.

    Without `--data` it is measured on the built-in world, where no bars are set; with it on the English Web Treebank.

    **Examples**

    ```sh
    softq bench parsing                                   # the built-in world, in a minute
    softq bench parsing --data DIR --json > parsing.json  # the treebank, in some minutes
    ```
    """,
        (
            declare(
                "passes",
                int,
                4,
                "Set the number of passes of each objective that are timed; the figure is the median.",
                min=1,
            ),
            _corpora("Measure on a real treebank: a folder with ud_english_ewt/."),
        ),
    ),
    "biaffine": (
        """Time the training of a neural parser with softq's trees against SuPar's in the same loop.

    SuPar is optional: `make bench` installs it.

    **Examples**

    ```sh
    softq bench biaffine --train train.conllu  # the table, on the GPU if there is one
    ```
    """,
        (
            declare(
                "train",
                Path,
                REQUIRED,
                "Take batches from this treebank (CoNLL-U).",
                dir_okay=False,
                exists=True,
            ),
            _rounds(5),
        ),
    ),
    "neural": (
        """Time the training of neural taggers and parsers, and a chain and trees on an encoder of BERT-base's size.

    Speed of the steps of `softq train ner|parsing --model neural`, the share of loss and decoding, gradients against a plain loop, and
    what structured heads cost in the training of an encoder. The bars are those of an H200.

    **Examples**

    ```sh
    softq bench neural  # the table, in minutes on a GPU
    ```
    """,
        (
            _rounds(5),
            _DEVICE,
        ),
    ),
    "translation": (
        """Time the training and the decoding of the paper's translator at the paper's size, beside a plain loop.

    Speed of the real loop, candidates made and scored among it, the share of time in which the GPU waits, and the memory it takes. The
    bars are those of an H200; on a CPU the table says how far away it is.

    **Examples**

    ```sh
    softq bench translation  # the table, in a minute on a GPU
    softq bench translation --precision float32 --json > exact.json
    ```
    """,
        (
            _rounds(5, "Set the number of rounds of steps that are timed"),
            _PRECISION,
            _DEVICE,
        ),
    ),
    "captioning": (
        """Time the training and the decoding of the paper's captioner at the paper's size, beside a plain loop.

    Speed of the real loop, candidates made and scored among it, for RAML and for SQDML with the paper's numbers of candidates, the share of
    time in which the GPU waits, and the memory it takes. The bars are those of an H200.

    **Examples**

    ```sh
    softq bench captioning  # the table, in a minute on a GPU
    softq bench captioning --device cpu --rounds 1 --json > captioning.json
    ```
    """,
        (
            _rounds(5, "Set the number of rounds of steps that are timed"),
            _PRECISION,
            _DEVICE,
        ),
    ),
    "encoder": (
        """Time `softq data features`: decoding JPEGs alone, the encoder alone, and both together.

    The images are made here, and the weights are random. Needs Pillow (`pip install 'softq[images]'`).

    **Examples**

    ```sh
    softq bench encoder  # the table, in a minute
    ```
    """,
        (
            _rounds(3),
            _DEVICE,
        ),
    ),
    "finetuning": (
        """Time the fine-tuning of Hugging Face models on candidates, beside the same with every source repeated.

    Loss and gradient of a T5-small and of a GPT-2 with random weights, plain and compiled, and the training loop with and without the
    making of candidates. Needs Transformers (`pip install 'softq[transformers]'`).

    **Examples**

    ```sh
    softq bench finetuning  # the table, in some minutes on a GPU
    softq bench finetuning --tiny --rounds 3
    ```
    """,
        (
            _rounds(15),
            _DEVICE,
            declare("tiny", bool, False, "Use tiny models, to try it out on a CPU.", "--tiny"),
        ),
    ),
}
"""What ``--help`` says of each script of the benchmarks, and the options that are passed on to it."""


def _command(name: str, options: tuple[Parameter, ...]) -> Callable[..., None]:
    """Run a script of the source tree in a process of its own, and exit as it does."""

    def run(*, as_json: bool, **given: Any) -> None:
        script = Path(softq.__file__).parents[2] / "benchmarks" / f"{name}.py"
        if not script.is_file():
            typer.echo(
                f"softq: the benchmarks come with the source tree, expected {script}; install with"
                " `pip install -e .` from a checkout",
                err=True,
            )
            raise typer.Exit(2)
        command = [sys.executable, str(script)]
        for option, value in {**given, "json": as_json}.items():
            if value is True:
                command.append(flag(option))
            elif value is not None and value is not False:
                command += [flag(option), str(value)]
        # The script's own folder leads its import path, which is where its neighbours are.
        done = subprocess.run(command, check=False, env=os.environ | {"PYTHONUNBUFFERED": "1"})  # noqa: S603
        raise typer.Exit(done.returncode)

    run.__signature__ = Signature([*options, _AS_JSON])  # type: ignore[attr-defined]
    return run


for _name, (_about, _options) in _BENCHMARKS.items():
    bench.command(_name, help=_about)(_command(_name, _options))
