"""The flags that many commands share, once: where the cluster is, who asks, and whether a person or a program reads."""

from __future__ import annotations

from typing import Annotated, Final

import typer

DEFAULT_API: Final = ",".join(f"http://127.0.0.1:{port}" for port in (7400, 7401, 7402, 7403))
"""A peer started alone listens on 7400, those of `avow up` on 7401 and up."""

ApiOption = Annotated[
    str,
    typer.Option(
        "--api",
        envvar="AVOW_API",
        metavar="URL,...",
        help="Addresses of peers, any of them; the first that answers is asked.",
        show_default="127.0.0.1, ports 7400 to 7403",
    ),
]
TokenOption = Annotated[
    str, typer.Option("--token", envvar="AVOW_TOKEN", metavar="TEXT", help="Access token.", show_default=False)
]
CaOption = Annotated[
    str,
    typer.Option(
        "--ca", envvar="AVOW_CA", metavar="FILE", help="PEM of the authority to trust with https.", show_default=False
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0.1, max=3600, metavar="SECONDS", help="How long to try before giving up.")
]
QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", show_default=False)]
