"""`avow demo`: a shop, three peers and a pipeline on this machine; a peer and the shop are killed with -9; then an
audit.

On a terminal there is a live screen, otherwise a line per event, with --json an object per event. Exit code 0: orders,
messages and rows agree; 1: they do not, and it prints what is missing; 2: it could not run; 130: interrupted. In any
case no process is left behind, and no folder unless --data names one.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.live import Live

from avow.cli.options import JsonOption
from avow.cli.output import console, print_json
from avow.cli.up import stopped_by_signals
from avow.errors import AvowError, InvalidRequest, NotInstalled
from avow_lab.campaigns.harness.campaign import draw_seed
from avow_lab.campaigns.harness.reporting import repeated

if TYPE_CHECKING:
    from avow_lab.demo.chain import DemoChain, Sampler
    from avow_lab.demo.narration import Event, Verdict
    from avow_lab.demo.story import Options, Story

BROKEN, COULD_NOT, INTERRUPTED = 1, 2, 130
LINE_S: Final = 5.0
REFRESH_HZ: Final = 5


def demo(
    orders: Annotated[
        int, typer.Option(min=0, help="Number of orders to place, instead of a time.", show_default=False)
    ] = 0,
    seconds: Annotated[float, typer.Option(min=1, help="How long customers order.")] = 36.0,
    peers: Annotated[int, typer.Option(min=1, max=9, help="Number of peers.")] = 3,
    database: Annotated[str, typer.Option(help="Database of the shop: sqlite or postgres.")] = "sqlite",
    data: Annotated[
        Path | None,
        typer.Option(help="A new folder for all data. It is not removed.", show_default="temporary, removed"),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running until Ctrl-C.")] = False,
    seed: Annotated[int | None, typer.Option(help="Decides the orders.", show_default="random")] = None,
    as_json: JsonOption = False,
    plant: Annotated[
        str, typer.Option(hidden=True, help="Plant an error that the audit must find: lost, doubled or orphan.")
    ] = "",
) -> None:
    """Show orders on their way from a database commit to a Spark table while a peer and the service are killed.

    Exit codes: 0 orders, messages and rows agree; 1 they do not; 2 it could not run; 130 interrupted.
    """
    try:
        _must_be_installed()
        options = _options(orders, seconds=seconds, seed=seed, peers=peers, database=database, plant=plant)
        code = _played(options, data, keep=keep, as_json=as_json)
    except AvowError as error:
        sys.stderr.write(f"avow: the demo could not run: {error}\n")
        raise typer.Exit(COULD_NOT) from error
    raise typer.Exit(code)


def _must_be_installed() -> None:
    """Before anything is started."""
    try:
        import deltalake
        import pyspark

        from avow_lab.demo import story
    except (ImportError, NotInstalled) as missing:
        raise NotInstalled("avow demo", extra="spark") from missing
    del deltalake, pyspark, story
    from avow.server import check_installed
    from avow.spark.java import find_java

    find_java()
    check_installed("avow demo")


def _options(orders: int, *, seconds: float, seed: int | None, peers: int, database: str, plant: str) -> Options:
    from avow_lab.campaigns.chain.chain import DATABASES
    from avow_lab.campaigns.chain.planted_errors import PLANTS
    from avow_lab.demo.story import Options

    chosen = next((kind for kind in DATABASES if kind == database), None)
    planted = next((kind for kind in PLANTS if kind == plant), None)
    if chosen is None:
        raise InvalidRequest(f"--database is one of {', '.join(DATABASES)}, not {database!r}; nothing was started")
    if plant and planted is None:
        raise InvalidRequest(f"--plant is one of {', '.join(PLANTS)}, not {plant!r}; nothing was started")
    return Options(orders=orders, seconds=seconds, seed=draw_seed(seed), peers=peers, database=chosen, plant=planted)


def _played(options: Options, data: Path | None, *, keep: bool, as_json: bool) -> int:
    from avow_lab.demo.story import Interrupted

    with stopped_by_signals() as stopping, _folder(data) as folder:
        show = Show(options, folder, stopping=stopping, as_json=as_json)
        try:
            verdict = show.play()
            show.conclude(verdict, kept=keep)
            if keep:
                stopping.wait()
        except Interrupted:
            show.say("interrupted")
            return INTERRUPTED
        finally:
            show.end()
        return exit_code(verdict)


def exit_code(verdict: Verdict) -> int:
    return 0 if verdict.clean else BROKEN


@contextmanager
def _folder(data: Path | None) -> Iterator[Path]:
    if data is not None and data.exists() and any(data.iterdir()):
        raise InvalidRequest(f"{data} is not empty; nothing was started. Name a new folder, or leave --data out")
    folder = Path(tempfile.mkdtemp(prefix="avow-demo-")) if data is None else data.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # a database may run as another user
    try:
        yield folder
    finally:
        if data is None:
            shutil.rmtree(folder, ignore_errors=True)


class Show:
    """One run of the demo: `play`, `conclude`, and in any case `end`."""

    def __init__(self, options: Options, folder: Path, *, stopping: threading.Event, as_json: bool) -> None:
        from avow_lab.demo.chain import DemoChain, Sampler
        from avow_lab.demo.story import Story

        self._as_json, self._out = as_json, console()
        self._events: list[Event] = []
        self._chain: DemoChain = DemoChain(
            peers=options.peers, database=options.database, folder=folder, seed=options.seed, orders=options.orders
        )
        self._story: Story = Story(options, self._chain, self._on_event, stopping)
        self._sampler: Sampler = Sampler(self._chain.sample)
        self._live: Live | None = None

    def play(self) -> Verdict:
        from avow_lab.demo.story import Interrupted

        self._sampler.start()
        try:
            with self._shown():
                return self._story.play()
        except AvowError as error:
            if self._story.stopping:  # a process that it needs was already stopped
                raise Interrupted from error
            raise
        finally:
            self._sampler.stop()

    def conclude(self, verdict: Verdict, *, kept: bool) -> None:
        from avow_lab.demo.view import event_line, verdict_lines, verdict_object

        if self._as_json:
            print_json(verdict_object(verdict))
            return
        if self._out.is_terminal:
            for event in self._events:
                self._out.print(event_line(event), soft_wrap=False)
        for line in verdict_lines(verdict):
            self._out.print(line)
        for text in self._reachable() if kept else self._next():
            self._out.print(text, markup=False)

    def end(self) -> None:
        self.say("stopping the pipeline and the peers")
        self._chain.end()

    def say(self, text: str) -> None:
        if not self._as_json:
            with suppress(OSError):  # the terminal may be closed; the processes must be stopped nevertheless
                self._out.print(text, style="dim")

    # ------------------------------------------------------------------ while it runs

    def _on_event(self, event: Event) -> None:
        from avow_lab.demo.view import event_line, event_object

        self._events.append(event)
        if self._as_json:
            print_json(event_object(event))
        elif self._live is None:
            self._out.print(event_line(event))
        sys.stdout.flush()

    @contextmanager
    def _shown(self) -> Iterator[None]:
        if not self._out.is_terminal or self._as_json:
            with repeated(self._print_counts, every_s=LINE_S):
                yield
            return
        self._live = Live(
            console=Console(highlight=False),
            get_renderable=self._picture,
            refresh_per_second=REFRESH_HZ,
            transient=True,
        )
        with self._live:
            yield

    def _picture(self) -> Any:
        from avow_lab.demo.view import Scene, picture

        chain, story = self._chain, self._story
        shop = getattr(chain, "shop", None)
        scene = Scene(
            act=story.act,
            elapsed_s=story.elapsed_s,
            share=story.share,
            shop_pid=shop.pid if shop else 0,
            shop_open=shop.alive if shop else False,
            driver_pid=chain.driver.pid,
            batches=chain.batches(),
        )
        width, height = self._out.size
        return picture(scene, self._sampler, self._events, width=width, height=height)

    def _print_counts(self) -> None:
        from avow_lab.demo.view import sample_text

        sample = self._sampler.latest
        if not sample.committed:
            return
        if self._as_json:
            print_json({"event": "figures", "at_s": round(self._story.elapsed_s, 2), "lag": sample.lag, "look": sample})
        else:
            self._out.print(f"{self._story.elapsed_s:5.1f} s {sample_text(sample)}")
        sys.stdout.flush()

    # ------------------------------------------------------------------ afterwards

    def _next(self) -> list[str]:
        return [
            "",
            "next:  avow demo --keep     the same, left running, with a dashboard",
            "       avow prove --chain   100 kills, of every process and of Spark",
            "       README.md, docs/     how to use it from your own service",
        ]

    def _reachable(self) -> list[str]:
        chain = self._chain
        return [
            "",
            "everything runs until Ctrl-C:",
            f"  dashboard  {chain.cluster.api(1)}/dashboard/",
            f"  peers      export AVOW_API={chain.cluster.addresses}",
            "             avow status; avow read orders; avow pledge list",
            f"""  shop       curl -d '{{"id": "mine", "amount": 5}}' {chain.shop.url}/orders""",
            f"  table      {chain.table.url}",
            "next: avow prove --chain (100 kills of every process), README.md, docs/",
        ]
