"""What `godwit ray` says where there is no Ray cluster."""

import pytest
from typer.testing import CliRunner

from godwit.cli import app
from tests.cluster.headprocess import free_port


@pytest.mark.parametrize("command", ["up", "down"])
def test_an_address_where_nobody_listens_is_said_at_once(command: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    result = CliRunner().invoke(app, ["ray", command, "--address", address])
    assert result.exit_code == 1
    assert f"no Ray cluster at {address}" in result.output


@pytest.mark.parametrize("address", ["ray://127.0.0.1", "10001", "here:99999"])
def test_what_is_no_address_is_said(address: str) -> None:
    result = CliRunner().invoke(app, ["ray", "down", "--address", address])
    assert result.exit_code == 2
    assert "HOST:PORT" in result.output
