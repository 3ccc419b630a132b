"""`softq explore` as a server on the loopback address, for those who know the page's key."""

from __future__ import annotations

import socket
import threading
import warnings
import webbrowser
from collections.abc import Callable
from pathlib import Path

import torch

from softq.errors import DependencyError, RunError
from softq.explorer.sentences import (
    EXAMPLE,
    SentenceStudy,
    load_references,
    parse_references,
    write_references,
)

HOST = "127.0.0.1"


def serve(
    references: Path | None, port: int | None, tell: Callable[[str], None], *, open_browser: bool
) -> None:
    """Serve the page until it is interrupted.

    Args:
        references: file to begin with; an example of softq's own if None.
        port: to listen on; any that is free if None.
        tell: is given the page's address, with its key, once the page can be asked for.
        open_browser: show the page in the user's browser.

    """
    try:
        import uvicorn
        from fastapi import FastAPI
        from nicegui import app as pages
        from nicegui import ui
        from starlette.middleware.trustedhost import TrustedHostMiddleware
    except ImportError as error:
        raise DependencyError(
            "softq explore needs NiceGUI, which is not installed: pip install 'softq[explore]'"
        ) from error
    from softq.explorer.gate import Gate, Key
    from softq.explorer.page import build

    text = EXAMPLE if references is None else write_references(load_references(references))
    study = SentenceStudy(parse_references(text))
    with _listen(port) as listener, warnings.catch_warnings():
        # NiceGUI looks at every object in search of its server, which torch warns of.
        warnings.simplefilter("ignore", FutureWarning)
        port, key = listener.getsockname()[1], Key()
        address = f"http://{HOST}:{port}/?key="

        def ready() -> None:
            tell(address + key.lasting)
            if open_browser:  # some browsers stay until they are closed
                opened = (address + key.once,)
                threading.Thread(target=webbrowser.open, args=opened, daemon=True).start()

        pages.on_startup(ready)
        app = FastAPI(openapi_url=None)
        app.add_middleware(Gate, key=key, port=port)
        # A page from elsewhere must not reach this one under a name of its own that points here.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
        ui.run_with(
            app,
            root=lambda: build(text, study),
            title="softq explore",
            favicon="🌡️",
            dark=None,
            tailwind=False,
        )
        torch.set_num_threads(1)  # on tensors this small, several only wait for each other
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
        uvicorn.Server(config).run(sockets=[listener])


def _listen(port: int | None) -> socket.socket:
    """A socket that listens on this machine alone."""
    try:
        return socket.create_server((HOST, port or 0))
    except OSError as error:
        raise RunError(
            f"cannot listen on port {port} of {HOST}: {error.strerror}; "
            "choose another --port, or leave it out"
        ) from error
