"""`softq predict`: labels for column files and running text, trees for CoNLL-U files, translations of lines, captions of images."""

from __future__ import annotations

import gzip
import lzma
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Annotated, Any, cast

import typer

from softq.cli.kinds import Options, find_kind, panels, who_takes
from softq.cli.options import refuse_others, takes_options
from softq.cli.progress import progress_bars
from softq.cli.shared import print_json
from softq.errors import DataError

MODEL_HELP = "A run folder of `softq train`, or a model's file."


@takes_options(Options, panels("predict"))
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    options: Options,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILES",
            help=(
                "Column files or text for a tagger, CoNLL-U files or text for a parser, CSV for a"
                " classifier, a sentence per line for a translator or text "
                "model; plain, .gz or .xz; - or none for standard input. For a captioner features"
                " of images (.npy), images, or folders."
            ),
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Write the result to this file, compressed if it ends in .gz or .xz.  [default:"
                " standard output]"
            ),
            dir_okay=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end.")
    ] = False,
) -> None:
    """Use a model: label words, parse or translate sentences, caption images.

    MODEL is a run folder of `softq train` or a file that `CRFTagger.save` or `DependencyParser.save` wrote; its kind decides how files are
    read. The result goes to standard output or to `--out`, in the order of the input and part by part: files may be of any size.

    **Examples**

    ```sh
    # a tagger: one more column
    softq predict runs/names new.conll --out tagged.conll
    echo "Ann went to Rome." | softq predict runs/names --probabilities
    # a parser: HEAD and DEPREL
    softq predict runs/trees new.conllu --out parsed.conllu
    # a classifier: one more column
    softq predict runs/costs new.csv --out decided.csv
    # a translator: line by line
    echo "Das passiert." | softq predict runs/mt
    softq predict runs/mt german.txt --method mbr --samples 20 --out english.txt
    # a captioner
    softq predict runs/captions test.features.npy --out captions.txt
    ```

    **Text.** Taggers and parsers read running text, a sentence per line, as well as columns: standard input and .txt files that look like
    text are split into words and punctuation, other files with `--text`. `--plain` takes the words that spaces separate. Where a model
    needs parts of speech, `--tagger` names the model that finds them: from text to tree in one call.

    **A tagger** adds the label as a last column, in the tag scheme of the files it was trained on. Lines that are blank or begin with
    `-DOCSTART-` stay as they are. The lines may have labels already; where lines `# annotators = …` name annotators, the model becomes one
    more, `softq`. A probability is that of the label, summed over all sequences of the others.

    **A parser** reads CoNLL-U or CoNLL-X and writes HEAD and DEPREL of words (`_` where it knows no relations); all else stays as it
    is. With `--probabilities`, MISC gets `p=0.9312`, the marginal probability of the head; CoNLL-X has no place for it, and files
    called .conllx are refused.

    **A classifier** reads CSV with the columns it was trained on, in any order, and adds the decision of the highest expected reward as the
    column `predicted`.

    **A translator** writes each translation as soon as it is found, so that it can be part of a pipe. `--method mbr` samples translations
    and takes the one with the highest expected reward. With the same `--seed`, samples for a line are the same from a file and a pipe.

    **A text model of Transformers**, of `softq train lm` or in a folder of `save_pretrained`, writes a text for each line too. Lines of
    similar length are batched together, `--batch-size` at a time; samples depend on the other lines of the batch.

    **A captioner** reads rows of features (`softq data features`), or images and folders of them, which it encodes like those it was trained
    on. Where the names of images are known (`FILE.names.txt` beside `FILE.npy`), a line is a name, a tab and a caption.

    **Next.** `softq evaluate --predictions FILE` scores the output, if the file has the correct answers, too.
    """
    kind = find_kind(model)
    refuse_others(
        options, kind.predict, lambda name: who_takes(name, "predict"), f"{model} is a {kind.name}"
    )
    predictor = kind.code.load(model, options)
    paths = files or [Path("-")]
    predictor.check_files(paths)
    counts = Counter(files=len(paths), sentences=0, tokens=0)
    began = time.perf_counter()
    # bars would mix with predictions on the same screen
    with (
        progress_bars(silent=out is None and sys.stdout.isatty()) as watch,
        opened_for_writing(out) as target,
    ):
        for part in predictor.predict_files(paths, watch):
            target.write(part.text)
            if out is None:  # somebody may be waiting for it
                target.flush()
            counts.update(sentences=part.sentences, tokens=part.tokens)
    seconds = time.perf_counter() - began
    rate = counts["tokens"] / seconds
    if as_json:
        facts = {"model": str(model), "decoding": predictor.decoding, **counts}
        facts |= {"seconds": seconds, "tokens_per_second": rate, "out": out and str(out)}
        print_json("predict", facts)
    elif out is not None:
        typer.echo(
            f"{out}: {counts['sentences']:,} sentences, {counts['tokens']:,} tokens, {rate:,.0f}"
            " tokens/s"
        )


@contextmanager
def opened_for_writing(path: Path | None) -> Iterator[IO[bytes]]:
    """A file that takes its place when it is complete; standard output for None."""
    if path is None:
        stream = typer.get_binary_stream("stdout")
        yield stream
        stream.flush()
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            with _packed(file, path) as target:
                yield target
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()  # there is none, if all went well


def _packed(file: IO[bytes], path: Path) -> Any:
    if path.suffix == ".gz":  # without name and time: the same labels, the same bytes
        return gzip.GzipFile("", "wb", fileobj=cast(Any, file), mtime=0)
    return lzma.open(file, "wb") if path.suffix == ".xz" else nullcontext(file)
