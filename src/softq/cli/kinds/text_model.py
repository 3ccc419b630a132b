"""Text models of 🤗 Transformers, such as runs of `softq train lm`: how they write and are scored."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from softq.cli.kinds import Options
from softq.cli.kinds.base import PredictedPart, Predictor, Scores, heading
from softq.cli.kinds.sentences import read_as_they_come, search_options
from softq.cli.progress import progress_bars
from softq.cli.recipes import LM_TITLES
from softq.lab.tasks.lm import open_text_model
from softq.lab.tasks.lm_data import Rows, read_rows
from softq.lab.tasks.lm_scores import LM_METRICS, score
from softq.rewards.names import SHORT_NAMES


class FileTextModel(Predictor):
    """A text model of a run folder or of ``save_pretrained``, and how it writes."""

    def __init__(self, path: Path, options: Options = Options()) -> None:
        super().__init__(path, options)
        asked, reward = search_options(options), options.reward
        changed: dict[str, Any] = {
            "beams": asked.pop("beam", None),
            "batch_size": options.batch_size,
            "reward": SHORT_NAMES.get(reward, reward) if reward is not None else None,
            "seed": options.seed or 0,
            **asked,
        }
        self.model, how = open_text_model(str(path))
        if reward is not None:
            self.model.reward(changed["reward"])  # an error before anything is written
        given = {name: value for name, value in changed.items() if value is not None}
        self.how = dataclasses.replace(how, **given)
        shown = {"mbr": f"mbr of {self.how.samples}", "beam": f"beam of {self.how.beams}"}
        self.decoding = shown.get(self.how.method, self.how.method)

    def predict(self, file: IO[bytes], path: Path, where: str) -> Iterator[PredictedPart]:
        """A text for each line; an empty line stays one."""
        for lines in read_as_they_come(file, where):
            texts = self.model.write(lines, self.how)
            words = sum(len(text.split()) for text in texts)
            yield PredictedPart("".join(f"{text}\n" for text in texts).encode(), len(texts), words)

    def score(self, files: Sequence[Path], rows: Rows, judge: FileTextModel) -> Scores:
        """Scores of the texts; rewards are those of a model, in its tokens."""
        with progress_bars() as watch:
            watcher = watch(str(self.path), unit="sentences")
            watcher.begin(len(rows), 0)
            reward = judge.how.reward
            found = score(
                self.model, rows, self.how, reward, judge.model, lambda n: watcher.advance(n, "")
            )
        signature = judge.model.reward(reward).signature
        sizes = {"sentences": len(rows), "references": sum(len(row["references"]) for row in rows)}
        extra = {name: value for name, value in found.as_dict().items() if name not in LM_METRICS}
        shown = {LM_TITLES[name]: f"{extra[name]:.2f}" for name in LM_TITLES if name in extra}
        named = list(map(str, files))
        return Scores(
            found.rows,
            LM_METRICS,
            LM_TITLES,
            {"files": named, "decoding": self.decoding, "signature": signature, **sizes},
            f"{heading(', '.join(named), sizes)}; {self.decoding}",
            details=extra,
            further=shown,
            lines=[f"reward: {signature}"],
        )


load = FileTextModel


def score_models(
    files: Sequence[Path], _options: Options, models: Sequence[FileTextModel]
) -> list[Scores]:
    """Scores by sources with references; all rewards are those of the first model, in its tokens."""
    rows = read_rows(*files)
    return [one.score(files, rows, models[0]) for one in models]
