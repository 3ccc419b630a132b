"""Text models of 🤗 Transformers, such as runs of `softq train lm`: how they write and are scored."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from softq.cli.kinds import MethodName, Options
from softq.cli.kinds.base import Part, Predictor, Scores
from softq.cli.kinds.sentences import read_as_they_come, search_options
from softq.cli.progress import progress_bars
from softq.cli.recipes import LM_TITLES
from softq.cli.shared import make_table
from softq.lab.tasks.lm import open_text_model
from softq.lab.tasks.lm_data import Rows, read_rows
from softq.lab.tasks.lm_scores import LM_METRICS, score
from softq.rewards.names import SHORT_NAMES


class FileTextModel(Predictor):
    """A text model of a run folder or of ``save_pretrained``, and how it writes."""

    def __init__(self, path: Path, options: Options = Options()) -> None:
        super().__init__(path, options)
        changed: dict[str, Any] = search_options(options) | {"seed": options.seed or 0}
        if "beam" in changed:
            changed["beams"] = changed.pop("beam")
        if options.batch_size is not None:
            changed["batch_size"] = options.batch_size
        self.model, how = open_text_model(str(path))
        if options.reward is not None:
            changed["reward"] = SHORT_NAMES.get(options.reward, options.reward)
            self.model.reward(changed["reward"])  # an error before anything is written
        self.how = dataclasses.replace(how, **changed)
        shown = {
            MethodName.mbr: f"mbr of {self.how.samples}",
            MethodName.beam: f"beam of {self.how.beams}",
        }
        self.decoding = shown.get(MethodName(self.how.method), self.how.method)

    def parts(self, file: IO[bytes], path: Path, where: str) -> Iterator[Part]:
        """A text for each line; an empty line stays one."""
        for lines in read_as_they_come(file, where):
            texts = self.model.write(lines, self.how)
            words = sum(len(text.split()) for text in texts)
            yield Part("".join(f"{text}\n" for text in texts).encode(), len(texts), words)

    def score(self, gold: Gold) -> Scores:
        """Scores of the texts; rewards are those of the first model, in its tokens."""
        judge = gold.judge
        with progress_bars() as watch:
            watcher = watch(str(self.path), unit="sentences")
            watcher.begin(len(gold.rows), 0)
            found = score(
                self.model,
                gold.rows,
                self.how,
                judge.how.reward,
                judge.model,
                lambda done: watcher.advance(done, ""),
            )
        signature = judge.model.reward(judge.how.reward).signature
        sizes = {
            "sentences": len(gold.rows),
            "references": sum(len(row["references"]) for row in gold.rows),
        }
        told = found.as_dict()
        extra = {name: value for name, value in told.items() if name not in LM_METRICS}
        rows = [
            (title, f"{told[name]:.{lm_digits(name)}f}")
            for name, title in LM_TITLES.items()
            if name in told
        ]
        line = ", ".join(
            f"{LM_TITLES[name]} {value:.2f}" for name, value in extra.items() if name in LM_TITLES
        )
        return Scores(
            found.rows,
            LM_METRICS,
            LM_TITLES,
            {"files": gold.files, "decoding": self.decoding, "signature": signature, **sizes},
            f"{', '.join(gold.files)}: {sizes['sentences']:,} sources, {sizes['references']:,}"
            f" references; {self.decoding}",
            details=extra,
            tables=[make_table(("", "score"), rows)],
            lines=[f"reward: {signature}"],
            as_other={"decoding": self.decoding, **extra},
            other_line=line,
        )


load = FileTextModel


def lm_digits(name: str) -> int:
    """Decimal places of a score."""
    return 2 if name.startswith(("sacrebleu", "seconds")) else 4


class Gold(NamedTuple):
    """Sources with references, and the model in whose tokens rewards are counted."""

    files: list[str]
    rows: Rows
    judge: FileTextModel


def read_gold(files: Sequence[Path], _options: Options, models: Sequence[FileTextModel]) -> Gold:
    """Sources with references."""
    return Gold(list(map(str, files)), read_rows(*files), models[0])
