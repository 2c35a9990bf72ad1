"""Stub."""

from msgspec import Struct

from godwit.scheduling.policies import Policy
from godwit.scheduling.view import ClusterView
from godwit.types import ModelName


class Explanation(Struct, frozen=True):
    """Stub."""


def explain(view: ClusterView, model: ModelName, policy: Policy) -> Explanation:  # noqa: ARG001
    """Stub."""
    return Explanation()
