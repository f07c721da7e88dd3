"""Flags that many commands share: the cluster's addresses, the token and CA, the timeout, and JSON output."""

from __future__ import annotations

from typing import Annotated, Final

import typer

DEFAULT_API: Final = ",".join(f"http://127.0.0.1:{port}" for port in (7400, 7401, 7402, 7403))
"""`avow serve` listens on 7400 by default; the peers of `avow up` listen on 7401 and up."""

ApiOption = Annotated[
    str,
    typer.Option(
        "--api",
        envvar="AVOW_API",
        metavar="URL,...",
        help="Addresses of one or more peers. The first one that answers is used.",
        show_default="127.0.0.1, ports 7400 to 7403",
    ),
]
TokenOption = Annotated[
    str, typer.Option("--token", envvar="AVOW_TOKEN", metavar="TEXT", help="Access token.", show_default=False)
]
CaOption = Annotated[
    str,
    typer.Option(
        "--ca", envvar="AVOW_CA", metavar="FILE", help="PEM file of the CA to trust for https.", show_default=False
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print only JSON.")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0.1, max=3600, metavar="SECONDS", help="Give up after this many seconds.")
]
QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", show_default=False)]
