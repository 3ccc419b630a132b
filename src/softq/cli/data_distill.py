"""`softq data distill`: a model's own samples as rows to train it on."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from softq.cli.options import option, takes_options
from softq.cli.progress import progress_bars
from softq.cli.shared import AsJson, print_json, tell
from softq.errors import DataError


@dataclass(frozen=True)
class _SamplingOptions:
    """How texts are sampled and compared."""

    samples: int = option(32, "Sample this many texts of each source.  [default: 32]", min=1)
    reward: str | None = option(
        None,
        "Compare samples by this reward, such as chrf or words:bleu.  [default: the model's]",
        metavar="NAME",
    )
    temperature: float = option(1.0, "Set the sampling temperature.  [default: 1.0]")
    top_p: float = option(
        1.0,
        "Sample from the smallest set of tokens whose probability is at least this.  [default: 1.0]",
        min=0.0,
        max=1.0,
    )
    max_new_tokens: int | None = option(
        None, "Sample texts of at most this many tokens.  [default: the model's]", min=1
    )
    hard: bool = option(
        False, "Write the best sample alone, as a reference for `--objective ml`.", "--hard"
    )
    batch_size: int | None = option(
        None, "Set the number of sources in a batch.  [default: the model's]", min=1
    )
    seed: int = option(0, "Random seed.  [default: 0]")


@takes_options(_SamplingOptions, dict.fromkeys(_SamplingOptions.__dataclass_fields__, "Sampling"))
def distill(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="A run folder of `softq train lm`, or one of `save_pretrained`."
        ),
    ],
    sources: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCES",
            help="A source on each line (.txt), source, tab and references (.tsv), or .jsonl; .gz"
            " and .xz, too. References are not used.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Write rows to this file (.jsonl).", dir_okay=False)],
    options: _SamplingOptions,
    as_json: AsJson = False,
) -> None:
    """Write what a model's own samples agree on, as rows to train it on (minimum-Bayes-risk distillation).

    The model samples texts for each source, and each sample earns its mean reward against all of them. A row has the best sample as
    its reference, and all distinct ones as candidates with their rewards: the samples are the references of SQDML.

    **Examples**

    ```sh
    softq data distill runs/ml german.txt --samples 32 --reward words:chrf --out distilled.jsonl
    # soft: toward all samples, by their rewards
    softq train lm --model runs/ml --train distilled.jsonl --dev dev.tsv --objective sqdml --tau 0.1 --sampler dataset --out runs/mbr
    # hard: τ → 0, the best sample alone
    softq data distill runs/ml german.txt --hard --out best.jsonl
    softq train lm --model runs/ml --train best.jsonl --dev dev.tsv --out runs/best
    ```

    The file appears when it is complete. An interrupted command resumes when it is run again, and writes the same file; with other
    sources, settings or another model it is refused until the unfinished file is deleted. Samples depend on `--seed`, the sources and
    `--batch-size`. Sources for which the model samples nothing but empty texts are left out.

    **Next.** `softq train lm --distill-samples 32` does this anew in every epoch.
    """
    from softq.integrations.transformers.distillation import distill_to
    from softq.lab.tasks.lm import open_text_model
    from softq.lab.tasks.lm_data import read_rows

    if out.suffix != ".jsonl":
        raise DataError(f"expected a file called .jsonl for the rows, got {out}")
    if not (options.temperature > 0 and options.top_p > 0):
        raise DataError(
            f"--temperature and --top-p must be positive, got {options.temperature} and {options.top_p}"
        )
    start = time.perf_counter()
    texts = [row["source"] for row in read_rows(sources, references=False)]
    text_model, how = open_text_model(str(model))
    how = replace(
        how,
        samples=options.samples,
        reward=options.reward or how.reward,
        temperature=options.temperature,
        top_p=options.top_p,
        max_new_tokens=options.max_new_tokens or how.max_new_tokens,
        batch_size=options.batch_size or how.batch_size,
        seed=options.seed,
    )
    weights = sum(float(one.detach().double().sum()) for one in text_model.core.parameters())
    with progress_bars() as watch:
        watcher = watch("distill", unit="sources")
        try:
            made = distill_to(
                out,
                text_model,
                texts,
                how,
                hard=options.hard,
                about={"model": str(model), "weights": weights},
                tell=lambda done, total: watcher.show(total, done),
            )
        except KeyboardInterrupt:
            tell(f"stopped; the same command continues with {out}")
            raise typer.Exit(130) from None
    facts: dict[str, Any] = {
        "path": str(out),
        "model": str(model),
        "reward": text_model.reward(how.reward).signature,
        "samples": how.samples,
        "seed": how.seed,
        **made._asdict(),
        "seconds": round(time.perf_counter() - start, 3),
    }
    if as_json:
        print_json("data distill", facts)
        return
    before = f" ({made.resumed_from:,} of them before)" if made.resumed_from else ""
    left_out = f", {made.left_out:,} left out" if made.left_out else ""
    typer.echo(
        f"{out}: {made.rows:,} rows{before}{left_out}, {how.samples} samples each by"
        f" {facts['reward']}, {facts['seconds']:.1f} s"
    )
