"""`softq bench`: the benchmarks of the source tree."""

from __future__ import annotations

import os
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import softq

bench = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", add_completion=False)


class Device(StrEnum):
    """Where a benchmark runs."""

    cpu = "cpu"
    cuda = "cuda"


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


@bench.command()
def core(
    rounds: Annotated[
        int, typer.Option(min=1, help="Turns that every contender gets; the figure is the median.")
    ] = 15,
    device: Annotated[
        Device | None, typer.Option(help="Where to run; the GPU if there is one.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Time loss and gradient of chains and trees against pytorch-crf, torch-struct and SuPar.

    The losses of all are checked to agree before they are timed. `make bench` installs the peers; one that is missing is left out.

    **Examples**

    ```sh
    softq bench core                          # the whole table, in a few minutes
    softq bench core --rounds 3 --device cpu  # a quick look
    softq bench core --json > core.json       # for a program
    ```
    """
    _run_benchmark(
        "core", as_json, "--rounds", str(rounds), *(["--device", device.value] if device else [])
    )


@bench.command()
def rewards(
    rounds: Annotated[
        int, typer.Option(min=1, help="Turns that every contender gets; the figure is the median.")
    ] = 15,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Time rewards and samplers against sacreBLEU, fast-bleu, rapidfuzz and a copy of memory, on two CPU threads.

    The table says which bars are reached; they are meant for a machine that does nothing else. `make bench` installs the peers; one
    that is missing is left out.

    **Examples**

    ```sh
    softq bench rewards                        # the whole table, in a minute or two
    softq bench rewards --rounds 3             # a quick look
    softq bench rewards --json > rewards.json  # for a program
    ```
    """
    _run_benchmark("rewards", as_json, "--rounds", str(rounds))


@bench.command()
def estimators(
    repeats: Annotated[
        int, typer.Option(min=2, help="Candidate sets per line of the table.")
    ] = 2000,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw bias and error there (.svg or .png; needs matplotlib).", dir_okay=False
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Measure bias and error of the estimators of a target on candidates, on a space small enough to sum over.

    Use it to see what `--estimator` of translators and captioners trades; it is the source of the figures in docs/estimators.md.

    **Examples**

    ```sh
    softq bench estimators                        # the whole table, in half a minute
    softq bench estimators --plot estimators.svg  # with a picture
    ```
    """
    _run_benchmark(
        "estimators", as_json, "--repeats", str(repeats), *(["--plot", str(plot)] if plot else [])
    )


@bench.command()
def classifier(
    folds: Annotated[int, typer.Option(min=2, help="Folds of the cross-validation.")] = 5,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of it with other folds.")] = 2,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Compare the decisions of RewardClassifier at its defaults with those of scikit-learn's classifiers.

    Four sets that come with scikit-learn, each with a table of costs: the figure is the mean cost of a decision on held-out rows.

    **Examples**

    ```sh
    softq bench classifier              # the whole table, in a few minutes
    softq bench classifier --repeats 1  # a quick look
    ```
    """
    _run_benchmark("classifier", as_json, "--folds", str(folds), "--repeats", str(repeats))


@bench.command()
def grid(
    rounds: Annotated[
        int, typer.Option(min=1, help="Turns that every contender gets; the figure is the median.")
    ] = 7,
    device: Annotated[
        Device | None, typer.Option(help="Where to run; the GPU if there is one.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Time the training of many small networks as one grid against training them one after another in plain torch.

    Contenders take turns on the same steps, and their weights are checked to agree. Also measured: how time grows with the inputs and
    memory with the epochs, and on a GPU the share of its peak.

    **Examples**

    ```sh
    softq bench grid                # the whole table, in a minute
    softq bench grid --device cuda  # the sizes of the paper on a GPU
    ```
    """
    _run_benchmark(
        "grid", as_json, "--rounds", str(rounds), *(["--device", device.value] if device else [])
    )


@bench.command()
def ner(
    rounds: Annotated[
        int, typer.Option(min=1, help="Iterations that are timed; the figure is the median.")
    ] = 7,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder with broad_twitter/ and wnut17/, for the figures on real corpora.",
            file_okay=False,
            exists=True,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Time the training of a feature CRF against python-crfsuite, and with `--data` all else that a tagger does.

    Both sides get the same features; CRFsuite's time is an L-BFGS iteration by its own log. On real corpora: training from file to saved
    model, the same optimum as CRFsuite's, extraction of features, and tagging.

    **Examples**

    ```sh
    softq bench ner                               # one iteration, in half a minute
    softq bench ner --data DIR --json > ner.json  # everything, in some minutes
    ```
    """
    _run_benchmark(
        "ner", as_json, "--rounds", str(rounds), *(["--data", str(data)] if data else [])
    )


@bench.command()
def parsing(
    passes: Annotated[
        int,
        typer.Option(
            min=1, help="Passes of each objective that are timed; the figure is the median."
        ),
    ] = 4,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder with ud_english_ewt/, for the figures on a real treebank.",
            file_okay=False,
            exists=True,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Time a log-linear parser: a pass over the data by ML and by RAML, a whole training, and parsing.

    Without `--data` it is measured on the built-in world, where no bars are set; with it on the English Web Treebank.

    **Examples**

    ```sh
    softq bench parsing                                   # the built-in world, in a minute
    softq bench parsing --data DIR --json > parsing.json  # the treebank, in some minutes
    ```
    """
    _run_benchmark(
        "parsing", as_json, "--passes", str(passes), *(["--data", str(data)] if data else [])
    )


@bench.command()
def biaffine(
    train: Annotated[
        Path,
        typer.Option(help="Treebank to take batches from (CoNLL-U).", dir_okay=False, exists=True),
    ],
    rounds: Annotated[
        int, typer.Option(min=1, help="Turns that every contender gets; the figure is the median.")
    ] = 5,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Time the training of `examples/biaffine.py` with softq's trees against SuPar's in the same loop.

    SuPar is optional: `make bench` installs it.

    **Examples**

    ```sh
    softq bench biaffine --train train.conllu  # the table, on the GPU if there is one
    ```
    """
    _run_benchmark("biaffine", as_json, "--train", str(train), "--rounds", str(rounds))


@bench.command()
def translation(
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds of steps that are timed; the figure is the median.")
    ] = 5,
    precision: Annotated[
        str, typer.Option(help="Of matrix products on a GPU: float32, tf32 or bf16.")
    ] = "bf16",
    device: Annotated[
        Device | None, typer.Option(help="Where to run; the GPU if there is one.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Time the training and the decoding of the paper's translator at the paper's size, beside a plain loop.

    Speed of the real loop, candidates made and scored among it, the share of time in which the GPU waits, and the memory it takes. The
    bars are those of an H200; on a CPU the table says how far away it is.

    **Examples**

    ```sh
    softq bench translation  # the table, in a minute on a GPU
    softq bench translation --precision float32 --json > exact.json
    ```
    """
    _run_benchmark(
        "translation",
        as_json,
        "--rounds",
        str(rounds),
        "--precision",
        precision,
        *(["--device", device.value] if device else []),
    )


@bench.command()
def captioning(
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds of steps that are timed; the figure is the median.")
    ] = 5,
    precision: Annotated[
        str, typer.Option(help="Of matrix products on a GPU: float32, tf32 or bf16.")
    ] = "bf16",
    device: Annotated[
        Device | None, typer.Option(help="Where to run; the GPU if there is one.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Time the training and the decoding of the paper's captioner at the paper's size, beside a plain loop.

    Speed of the real loop, candidates made and scored among it, for RAML and for SQDML with the paper's numbers of candidates, the share of
    time in which the GPU waits, and the memory it takes. The bars are those of an H200.

    **Examples**

    ```sh
    softq bench captioning  # the table, in a minute on a GPU
    softq bench captioning --device cpu --rounds 1 --json > captioning.json
    ```
    """
    _run_benchmark(
        "captioning",
        as_json,
        "--rounds",
        str(rounds),
        "--precision",
        precision,
        *(["--device", device.value] if device else []),
    )


@bench.command()
def encoder(
    rounds: Annotated[
        int, typer.Option(min=1, help="Turns that each contender gets; the figure is the median.")
    ] = 3,
    device: Annotated[
        Device | None, typer.Option(help="Where to run; the GPU if there is one.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Time `softq data features`: decoding JPEGs alone, the encoder alone, and both together.

    The images are made here, and the weights are random. Needs Pillow (`pip install 'softq[images]'`).

    **Examples**

    ```sh
    softq bench encoder  # the table, in a minute
    ```
    """
    _run_benchmark(
        "encoder", as_json, "--rounds", str(rounds), *(["--device", device.value] if device else [])
    )


@bench.command()
def finetuning(
    rounds: Annotated[
        int, typer.Option(min=1, help="Turns that each contender gets; the figure is the median.")
    ] = 15,
    device: Annotated[
        Device | None, typer.Option(help="Where to run; the GPU if there is one.")
    ] = None,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Tiny models, to try it out on a CPU.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Time the fine-tuning of Hugging Face models on candidates, beside the same with every source repeated.

    Loss and gradient of a T5-small and of a GPT-2 with random weights, plain and compiled, and the training loop with and without the
    making of candidates. Needs Transformers (`pip install 'softq[transformers]'`).

    **Examples**

    ```sh
    softq bench finetuning  # the table, in some minutes on a GPU
    softq bench finetuning --tiny --rounds 3
    ```
    """
    where = ["--device", device.value] if device else []
    _run_benchmark(
        "finetuning", as_json, "--rounds", str(rounds), *where, *(["--tiny"] if tiny else [])
    )


def _run_benchmark(name: str, as_json: bool, *options: str) -> NoReturn:
    """Run a script of the source tree in a process of its own, and exit as it does."""
    script = Path(softq.__file__).parents[2] / "benchmarks" / f"{name}.py"
    if not script.is_file():
        typer.echo(
            f"softq: the benchmarks come with the source tree, expected {script}; install with `pip"
            " install -e .` from a checkout",
            err=True,
        )
        raise typer.Exit(2)
    command = [sys.executable, str(script), *options, *(["--json"] if as_json else [])]
    # The script's own folder leads its import path, which is where its neighbours are.
    raise typer.Exit(
        subprocess.run(command, check=False, env=os.environ | {"PYTHONUNBUFFERED": "1"}).returncode  # noqa: S603
    )
