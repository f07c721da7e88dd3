from pathlib import Path

import pytest

from avow.errors import InvalidRequest
from avow.server.settings import DESCRIPTIONS, Settings, address, address_text, founders_of, load


def test_there_are_at_most_twenty_six_settings_and_each_is_described() -> None:
    assert tuple(DESCRIPTIONS) == Settings.__struct_fields__
    assert len(DESCRIPTIONS) <= 26


def test_a_flag_overrides_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    config = tmp_path / "avow.toml"
    config.write_text('data = "file"\nlisten = "127.0.0.1:1"\nlog = "debug"\n')
    environment = {"AVOW_DATA": "environment", "AVOW_LISTEN": "127.0.0.1:2", "AVOW_TOKEN": "not a setting"}
    settings = load({"data": "flag", "listen": None}, environment=environment, config=config)
    assert (settings.data, settings.listen, settings.log) == ("flag", "127.0.0.1:2", "debug")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"number": "0"}, "setting number"),
        ({"listen": "nowhere"}, "listen must be host:port"),
        ({"log": "loud"}, "setting log"),
        ({"channels_max": "0"}, "setting channels_max"),
        ({"channel_window_s": "0"}, "setting channel_window_s"),
        ({"pledge_retry_s": "0"}, "setting pledge_retry_s"),
        ({"grpc_listen": "nowhere"}, "grpc_listen must be host:port"),
        ({"colour": "blue"}, "unknown setting 'colour'"),
        ({"founders": "1=127.0.0.1:1,1=127.0.0.1:2"}, "each number once"),
        ({"founders": "2=127.0.0.1:1"}, "number 1 is not among the founders"),
        ({"founders": "1=127.0.0.1:1", "join": "http://127.0.0.1:2"}, "not both"),
    ],
)
def test_a_wrong_setting_is_named_with_its_allowed_values(flags: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        load(flags, environment={})


def test_a_file_that_is_not_toml_is_named(tmp_path: Path) -> None:
    config = tmp_path / "avow.toml"
    config.write_text("data = ")
    with pytest.raises(InvalidRequest, match="is not TOML"):
        load({}, environment={}, config=config)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        load({}, environment={}, config=tmp_path / "missing.toml")


def test_without_founders_a_peer_is_a_cluster_of_one() -> None:
    assert founders_of(Settings()) == {1: "127.0.0.1:7500"}
    assert founders_of(Settings(join="http://127.0.0.1:7400")) == {}


def test_addresses_are_read_and_written_also_for_ipv6() -> None:
    assert address("[::1]:80", name="x") == ("::1", 80)
    assert address_text("::1", 80) == "[::1]:80"
