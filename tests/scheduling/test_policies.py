"""The table of policies."""

import pytest

from godwit.errors import ConfigError
from godwit.scheduling.policies import POLICIES, policy_named


def test_a_policy_is_found_by_its_name() -> None:
    assert policy_named("least_loaded") is POLICIES["least_loaded"]


def test_a_wrong_name_lists_the_right_ones() -> None:
    with pytest.raises(ConfigError, match="least_loaded"):
        policy_named("fastest")
