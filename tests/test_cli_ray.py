"""`godwit ray` as far as it goes without a Ray cluster; tests/ray has the rest."""

import importlib.util

import pytest
from typer.testing import CliRunner

from godwit.cli import app
from godwit.cli_ray import check_reach
from godwit.config import SecuritySettings, Settings
from godwit.errors import ConfigError
from godwit.fleet.plan import FleetPlan, Node

NODE = Node("ab" * 28, "10.0.0.7", {})
KEYS = SecuritySettings(api_keys=("a",), join_token="j", admin_key="k")


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed here")
@pytest.mark.parametrize("command", ["up", "down"])
def test_without_ray_it_says_how_to_get_it(command: str) -> None:
    result = CliRunner().invoke(app, ["ray", command])
    assert result.exit_code == 2
    assert "pip install 'godwit[ray]'" in result.output


def test_a_head_that_others_can_reach_needs_keys() -> None:
    check_reach(FleetPlan(Settings(security=KEYS), {}), NODE)
    with pytest.raises(ConfigError, match=r"security\.api_keys"):
        check_reach(FleetPlan(Settings(), {}), NODE)


def test_who_watches_the_nodes_needs_the_admin_key() -> None:
    for security in (SecuritySettings(insecure=True), SecuritySettings(api_keys=("a",), join_token="j")):
        with pytest.raises(ConfigError, match=r"security\.admin_key"):
            check_reach(FleetPlan(Settings(security=security), {}), NODE)


def test_on_loopback_nothing_is_needed() -> None:
    check_reach(FleetPlan(Settings(), {}), Node("ab" * 28, "127.0.0.1", {}))
