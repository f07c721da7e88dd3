"""The course that all campaigns share: folder, order of the steps, verdict file, exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from msgspec import Struct

from avow.errors import Offline
from avow_lab.campaigns.harness.campaign import Options, prove
from avow_lab.campaigns.harness.reporting import choose


class Progress(Struct):
    phase: str = "testing"
    elapsed_s: float = 0.0

    def line(self) -> str:
        return self.phase


class Verdict(Struct):
    clean: bool
    folder: str = ""


class Steps:
    """A campaign that records its steps."""

    def __init__(self, clean: bool = True, fails: bool = False) -> None:
        self.clean, self.fails = clean, fails
        self.steps: list[str] = []
        self.folder = Path()

    def __call__(self, _options: Options, folder: Path) -> Steps:
        self.folder = folder
        return self

    def progress(self) -> Progress:
        return Progress()

    def start(self) -> None:
        self.steps.append("start")

    def inject_faults(self) -> None:
        self.steps.append("inject_faults")
        if self.fails:
            raise Offline("a peer did not come back")

    def judge(self) -> Verdict:
        self.steps.append("judge")
        return Verdict(self.clean)

    def close(self) -> None:
        self.steps.append("close")


def test_a_clean_campaign_removes_its_temporary_folder() -> None:
    campaign = Steps()
    assert prove(campaign, Options()) == Verdict(True, "")
    assert campaign.steps == ["start", "inject_faults", "judge", "close"]
    assert not campaign.folder.exists()


def test_a_folder_is_kept_with_the_verdict_when_it_is_named(tmp_path: Path) -> None:
    verdict = prove(Steps(), Options(folder=str(tmp_path / "named")))
    assert verdict.folder == str(tmp_path / "named")
    assert json.loads((tmp_path / "named" / "verdict.json").read_text()) == {"clean": True, "folder": verdict.folder}


@pytest.mark.parametrize(("options", "clean"), [(Options(), False), (Options(keep=True), True)])
def test_a_temporary_folder_is_kept_after_a_violation_or_on_request(options: Options, clean: bool) -> None:
    campaign = Steps(clean=clean)
    verdict = prove(campaign, options)
    assert verdict.folder == str(campaign.folder)
    (campaign.folder / "verdict.json").unlink()
    campaign.folder.rmdir()


def test_a_campaign_that_could_not_run_is_closed_and_leaves_nothing() -> None:
    campaign = Steps(fails=True)
    with pytest.raises(Offline):
        prove(campaign, Options())
    assert campaign.steps == ["start", "inject_faults", "close"]
    assert not campaign.folder.exists()


def test_names_are_chosen_from_a_list() -> None:
    assert choose("--store", "all", ("a", "b")) == ("a", "b")
    assert choose("--store", " b, a", ("a", "b")) == ("a", "b")
    for text in ("c", "", "a,c"):
        with pytest.raises(typer.BadParameter, match=r"--store: there is no .*; there are a, b"):
            choose("--store", text, ("a", "b"))
