"""`softq predict`: labels for column files and running text, trees for CoNLL-U files, translations of lines, captions of images."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any, cast, get_args

import numpy as np
import typer

import softq
from softq.checks import check_count
from softq.cli.model_files import (
    DecodingName,
    DecodingOption,
    choose_decoding,
    find_model,
    is_captioner,
    is_parser,
    is_translator,
)
from softq.cli.predict_captions import FileCaptioner, write_captions
from softq.cli.predict_sentences import (
    BeamOption,
    FileTranslator,
    LengthPenaltyOption,
    MethodOption,
    RewardOption,
    SamplesOption,
    Searching,
    SeedOption,
    TemperatureOption,
    TopPOption,
    translated,
)
from softq.cli.predict_trees import FileParser, Part, Parts, parsed
from softq.cli.progress import progress_bars
from softq.cli.shared import one_line_errors
from softq.cli.write_lm import BatchSizeOption, FileLm, is_lm, written
from softq.errors import DataError
from softq.formats.chunks import Chunk, read_chunks, read_plain_chunks
from softq.formats.file_checks import one_of, refusing
from softq.formats.tags import Scheme, convert
from softq.formats.text import unpacked
from softq.lab.loop import Watcher
from softq.linear.features import FeatureMatrix, TemplateIndex
from softq.linear.tagging import Decoding, Tagger

STDIN = Path("-")
_ANNOTATOR = "softq"  # what the added column is called where lines name annotators
_LABEL = re.compile(r"O|[BIES]-.+")


ModelArgument = typer.Argument(
    metavar="MODEL",
    help="A run folder of `softq train` (ner, parsing, translation, captioning, lm), or a model's file.",
)


@dataclass(frozen=True)
class FileTagger:
    """A tagger with what it needs to know of the files it was trained on.

    Attributes:
        tagger: the model.
        index: of its features.
        file_scheme: of the training files, None where it is not known, or labels are no entity tags.
        trained_scheme: of the tagger's own labels, or None likewise.
        decoding: how labels are chosen.
        pos: column of parts of speech, the token's being 1; 0 where the model knows none.

    """

    tagger: Tagger
    index: TemplateIndex
    file_scheme: Scheme | None
    trained_scheme: Scheme | None
    decoding: Decoding
    pos: int

    @classmethod
    def load(cls, path: Path, decoding: DecodingName | None = None) -> FileTagger:
        """The best model of a run folder, or that of a file."""
        tagger, notes = Tagger.load(find_model(path))
        if not isinstance(tagger.index, TemplateIndex):
            raise DataError(
                f"{path} was trained on features that a program made: expected a tagger that finds its own features in words"
            )
        schemes = (None, *get_args(Scheme))
        with refusing(f"{path} is damaged"):
            scheme = one_of("file_scheme", notes.get("file_scheme", tagger.scheme), schemes)
            trained = one_of("trained_scheme", notes.get("trained_scheme", scheme), schemes)
            # a file of CRFTagger.save notes other things: its options, and whether tokens are pairs, of which the second is a part of speech
            usual: Decoding = notes.get("decoding") or notes.get("parameters", {}).get(
                "decoding", "viterbi"
            )
            pos = check_count(
                "pos",
                notes.get("pos", 2 if notes.get("kind") == "pairs" else 0),
                DataError,
                least=0,
            )
        chosen = choose_decoding(path, decoding, usual, get_args(Decoding), "tagger")
        return cls(tagger, tagger.index, scheme, trained, chosen, pos)

    def features(
        self, tokens: Sequence[Sequence[str]], pos: Sequence[Sequence[str]] | None
    ) -> FeatureMatrix:
        """Features of sentences."""
        return self.index.transform(tokens, None if pos is None else {"pos": pos})

    def labels(
        self, own: Sequence[Sequence[str]], scheme: Scheme | None
    ) -> Sequence[Sequence[str]]:
        """The tagger's own labels, written in another scheme."""
        if self.trained_scheme is None or scheme is None or self.trained_scheme == scheme:
            return own
        return [convert(labels, self.trained_scheme, scheme) for labels in own]


def predict(
    model: Annotated[Path, ModelArgument],
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILES…]",
            help="Column files, the token in the first column; for a parser CoNLL-U files; for a translator a sentence per line; "
            "plain, .gz or .xz; - or none for standard input. For a captioner features of images (.npy), images, or folders of them.",
            show_default=False,
        ),
    ] = None,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain", help="The files are running text: a sentence per line, words by spaces."
        ),
    ] = False,
    decoding: DecodingOption = None,
    probabilities: Annotated[
        bool,
        typer.Option(
            "--probabilities",
            help="Add the probability of each label, whatever the others are, as one more column; of each head as p=… in MISC, "
            "which CoNLL-X (.conllx) has not; of each translation or caption its logarithm, after a tab.",
        ),
    ] = False,
    method: MethodOption = None,
    beam: BeamOption = None,
    samples: SamplesOption = None,
    reward: RewardOption = None,
    seed: SeedOption = None,
    temperature: TemperatureOption = None,
    top_p: TopPOption = None,
    length_penalty: LengthPenaltyOption = None,
    batch_size: BatchSizeOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for the result, packed if it ends in .gz or .xz.  [default: standard output]",
            dir_okay=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end.")
    ] = False,
) -> None:
    """Use a model: label words, parse or translate sentences, caption images.

    MODEL is a run folder of `softq train` or a file that `CRFTagger.save` or `DependencyParser.save` wrote; what it is decides how files
    are read. The result goes to standard output or to `--out`, in the order of the input and part by part: files may be of any size.

    **Examples**

    ```sh
    # a tagger: one more column
    softq predict runs/names new.conll --out tagged.conll
    echo "Ann went to Rome" | softq predict runs/names - --plain --probabilities
    # a parser: HEAD and DEPREL
    softq predict runs/trees new.conllu --out parsed.conllu
    # a translator: line by line
    echo "Das passiert." | softq predict runs/mt
    softq predict runs/mt german.txt --method mbr --samples 20 --out english.txt
    # a captioner
    softq predict runs/captions test.features.npy --out captions.txt
    ```

    **A tagger** adds the label as a last column, in the tag scheme of the files it was trained on. Lines that are blank or begin with
    `-DOCSTART-` stay as they are. Labels may be there already or not; where lines `# annotators = …` name annotators, the model becomes one
    more, `softq`. A probability is that of the label, summed over all sequences of the others.

    **A parser** reads CoNLL-U or CoNLL-X and writes HEAD and DEPREL of words (`_` where it knows no relations); all else comes back as it
    was. With `--probabilities`, MISC gets `p=0.9312`, the probability of the head in all trees together; CoNLL-X has no place for it, and
    files called .conllx are refused. `--plain` is for parsers that look at nothing but words.

    **A translator** writes each line as soon as it is known, so that it can be one end of a pipe. `--method mbr` draws translations
    and takes the one of the highest expected reward. With the same `--seed`, draws for a line are the same from a file and from a pipe.

    **A model of Transformers**, of `softq train lm` or in a folder of `save_pretrained`, writes a text for each line too. Lines of similar
    length are read together, `--batch-size` at a time; draws depend on the lines that come with them.

    **A captioner** reads rows of features (`softq data features`), or images and folders of them, which it encodes as those it was trained
    on. A caption stands after its image's name and a tab, where the name is known (`FILE.names.txt` beside `FILE.npy`).

    **Next.** `softq evaluate --predictions FILE` scores what was written, if the file says what is right, too.
    """
    with one_line_errors():
        files = files or [STDIN]
        searching = Searching(
            method, beam, samples, reward, seed, temperature, top_p, length_penalty
        )
        predictor: FileTagger | FileParser | FileTranslator | FileCaptioner | FileLm
        write: Callable[..., dict[str, int]]
        of_transformers = is_lm(model)
        if batch_size is not None and not of_transformers:
            raise DataError(
                f"--batch-size is for models of Transformers, and {model} is none: leave it out"
            )
        if of_transformers:
            if plain or decoding is not None or probabilities:
                raise DataError(
                    f"{model} is a model of Transformers, which has --method: leave out --plain, --decoding and --probabilities"
                )
            predictor = FileLm(model, searching, batch_size)
            write = partial(_work_through, files, written(predictor))
        elif is_captioner(model):
            if plain or decoding is not None:
                raise DataError(
                    f"{model} is a captioner, which has --method and reads no text: leave out --plain and --decoding"
                )
            predictor = FileCaptioner.load(model, searching)
            write = partial(write_captions, predictor, files, probabilities=probabilities)
        elif is_translator(model):
            if plain or decoding is not None:
                raise DataError(
                    f"{model} is a translator, which has --method and takes running text as it is: leave out --plain and --decoding"
                )
            predictor = FileTranslator.load(model, searching)
            write = partial(
                _work_through, files, translated(predictor, probabilities=probabilities)
            )
        else:
            searching.refuse_for(model)
            if is_parser(model):
                predictor = FileParser.load(model, decoding)
                write = partial(
                    _work_through,
                    files,
                    parsed(predictor, files, plain=plain, probabilities=probabilities),
                )
            else:
                predictor = FileTagger.load(model, decoding)
                write = partial(
                    _work_through,
                    files,
                    _tagged(predictor, model, plain=plain, probabilities=probabilities),
                )
        began = time.perf_counter()
        # a bar would mix with labels on the same screen
        bars = (
            nullcontext(lambda *_, **__: Watcher())
            if out is None and sys.stdout.isatty()
            else progress_bars()
        )
        with bars as watch, _opened_for_writing(out) as target:
            counts = write(target, watch, at_once=out is None)
        seconds = time.perf_counter() - began
        rate = counts["tokens"] / seconds
        if as_json:
            facts = {
                "command": "predict",
                "softq": softq.__version__,
                "model": str(model),
                "decoding": predictor.decoding,
            }
            typer.echo(
                json.dumps(
                    {
                        **facts,
                        **counts,
                        "seconds": seconds,
                        "tokens_per_second": rate,
                        "out": out and str(out),
                    }
                )
            )
        elif out is not None:
            typer.echo(
                f"{out}: {counts['sentences']:,} sentences, {counts['tokens']:,} tokens, {rate:,.0f} tokens/s"
            )


def _work_through(
    files: Sequence[Path],
    make: Parts,
    target: IO[bytes],
    watch: Callable[..., Watcher],
    *,
    at_once: bool,
) -> dict[str, int]:
    """Write what is made of files, each part at once where somebody may be waiting for it; how much it was."""
    counts = {"files": len(files), "sentences": 0, "tokens": 0}
    for path in files:
        where = "standard input" if path == STDIN else str(path)
        with _opened_for_reading(path, where) as (packed, file):
            watcher = watch(where, unit="bytes")
            watcher.begin(0 if path == STDIN else path.stat().st_size, 0)
            seen = 0
            for part in make(file, where):
                target.write(part.text)
                if at_once:
                    target.flush()
                counts["sentences"] += part.sentences
                counts["tokens"] += part.tokens
                place = 0 if path == STDIN else packed.tell()
                watcher.advance(place - seen, f"{counts['tokens']:,} tokens")
                seen = place
    return counts


def _tagged(tagger: FileTagger, model: Path, *, plain: bool, probabilities: bool) -> Parts:
    """Files with their labels; ``plain`` ones are running text."""
    if plain and tagger.pos:
        raise DataError(
            f"{model} needs parts of speech (column {tagger.pos}), and running text has none: give column files"
        )
    separators: dict[str, str] = {}  # the first file that has each

    def parts(file: IO[bytes], where: str) -> Iterator[Part]:
        for chunk in (read_plain_chunks if plain else read_chunks)(file, where):
            if (
                chunk.blocks
                and separators.setdefault(chunk.separator, where) == where
                and len(separators) > 1
            ):
                other = next(iter(separators.values()))
                raise DataError(
                    f"{where} and {other} separate columns differently, tabs and spaces: label them one by one"
                )
            text = _label_chunk(tagger, chunk, where, probabilities=probabilities)
            yield Part(text, len(chunk.blocks), sum(len(block.widths) for block in chunk.blocks))

    return parts


def _label_chunk(tagger: FileTagger, chunk: Chunk, where: str, *, probabilities: bool) -> bytes:
    """The lines with their labels."""
    lines = chunk.lines
    if chunk.blocks:
        matrix = tagger.features(
            [block.columns[0] for block in chunk.blocks], _parts_of_speech(tagger.pos, chunk, where)
        )
        own = tagger.tagger.decode(matrix, tagger.decoding)
        added = tagger.labels(own, tagger.file_scheme)
        if probabilities:
            added = list(_with_probabilities(tagger.tagger, matrix, own, added, chunk.separator))
        for block, labels in zip(chunk.blocks, added, strict=True):
            start = block.line - chunk.first
            rows = zip(lines[start : start + len(labels)], labels, strict=True)
            lines[start : start + len(labels)] = [
                f"{line}{chunk.separator}{label}" for line, label in rows
            ]
            if block.names is not None:
                if probabilities:
                    raise DataError(
                        f"{where}, line {block.names_line}: annotators have names here, and a probability is no label of theirs"
                    )
                lines[block.names_line - chunk.first] += f" {_ANNOTATOR}"
    if lines and lines[-1]:
        lines.append("")  # of several files, each ends its last sentence
    return "".join(f"{line}\n" for line in lines).encode()


def _with_probabilities(
    tagger: Tagger,
    matrix: FeatureMatrix,
    own: Sequence[Sequence[str]],
    written: Sequence[Sequence[str]],
    separator: str,
) -> Iterator[list[str]]:
    number = {label: k for k, label in enumerate(tagger.labels)}
    for table, labels, shown in zip(tagger.marginals(matrix), own, written, strict=True):
        chosen = table[np.arange(len(labels)), [number[label] for label in labels]]
        yield [
            f"{label}{separator}{probability:.4f}"
            for label, probability in zip(shown, chosen.tolist(), strict=True)
        ]


def _parts_of_speech(pos: int, chunk: Chunk, where: str) -> list[tuple[str, ...]] | None:
    """The column of parts of speech, where the model looks at one."""
    if not pos:
        return None
    for block in chunk.blocks:
        if len(block.columns) < pos:
            raise DataError(
                f"{where}, line {block.line}: the model needs parts of speech in column {pos}, as in the files it was trained on, "
                f"got {len(block.columns)} columns"
            )
    if all(len(block.columns) == pos for block in chunk.blocks):
        values = {value for block in chunk.blocks for value in block.columns[pos - 1]}
        if all(map(_LABEL.fullmatch, values)):
            raise DataError(
                f"{where}, line {chunk.blocks[0].line}: the model needs parts of speech in column {pos}, got labels such as {min(values)!r}"
            )
    return [block.columns[pos - 1] for block in chunk.blocks]


@contextmanager
def _opened_for_reading(path: Path, where: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """The file as it is on the disk, and what is packed in it."""
    if path == STDIN:
        stream = typer.get_binary_stream("stdin")
        yield stream, stream
        return
    with ExitStack() as stack:
        try:
            packed = stack.enter_context(path.open("rb"))
        except OSError as error:
            raise DataError(f"cannot read {where}: {error}") from error
        yield packed, stack.enter_context(unpacked(packed, path))


@contextmanager
def _opened_for_writing(path: Path | None) -> Iterator[IO[bytes]]:
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
    if path.suffix == ".gz":
        return gzip.GzipFile(
            "", "wb", fileobj=cast(Any, file), mtime=0
        )  # without name and time: the same labels, the same bytes
    if path.suffix == ".xz":
        return lzma.open(file, "wb")
    return nullcontext(file)
