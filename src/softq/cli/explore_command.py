"""`softq explore`: what a temperature does, in a browser."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer


def explore(
    references: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Open with the references of this text file: an input per line, words by spaces,"
                " several references by tabs; plain, .gz or .xz."
            ),
            dir_okay=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Listen on this port.  [default: any that is free]"),
    ] = None,
    browser: Annotated[
        bool,
        typer.Option(
            "--browser/--no-browser",
            help="Open the page in your browser, or only print its address.",
        ),
    ] = True,
) -> None:
    """Explore what a temperature does to RAML and SQDML, on a page in your browser.

    The page is served by this machine and to this machine alone (127.0.0.1), and asks no other for anything. Ctrl-C ends it.
    Needs `softq[explore]`.

    **Sentences.** Type references or load a file; choose a reward and where candidates come from; move τ. The table shows each
    candidate with its mean reward and its weight under RAML and SQDML, and marks words that differ from the closest reference. The
    charts show the mass on the references, the entropy and the expected reward against τ, and the τ that leaves the mass you ask for.
    With one reference both objectives are the same; with several, SQDML prefers what earns most on average, whoever wrote it.

    **Classes.** Paste a table of costs or rewards, give P(y|x) of an input, and see what maximum likelihood, RAML and the Bayes rule
    decide there and around it, and how far RAML's Q' is from SQDML's Q beside every bound of the theory.

    **Examples**

    - `softq explore`: with references of softq's own
    - `softq explore --references captions.tsv`: with yours
    - `softq explore --no-browser --port 8080`: only print the address, as on a machine reached by `ssh -L 8080:127.0.0.1:8080`

    `softq theory --references FILE` prints the same curves as a table.
    """
    from softq.explorer import server

    with contextlib.suppress(KeyboardInterrupt):
        server.serve(
            references,
            port,
            lambda address: typer.echo(f"{address} (Ctrl-C ends it)"),
            open_browser=browser,
        )
