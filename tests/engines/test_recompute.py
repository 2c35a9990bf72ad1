"""On the real model, recomputed KV is the KV: not only the tokens but every logprob is equal to the bit."""

import pytest

from godwit.ports import Generated, SequenceSpec
from godwit.types import Sampling, Token, TokenId
from tests.engines.rig import Rig
from tests.engines.test_contract import prompt

LENGTH = 60
WARM = Sampling(seed=3, max_tokens=LENGTH, temperature=1.0, num_logprobs=5, ignore_eos=True)


def tokens(rig: Rig, outputs: tuple[TokenId, ...] = ()) -> list[Token]:
    """All tokens from here on, with their logprobs."""
    request = rig.open(SequenceSpec(prompt(rig), outputs, WARM))
    rig.engine.generate(request)
    rig.finish(request)
    return [event.token for event in rig.events(request) if isinstance(event, Generated)]


@pytest.mark.parametrize("cut", [1, 17, 40, LENGTH - 1])
def test_a_recomputed_request_goes_on_with_the_same_logprobs_to_the_bit(llama_rig: Rig, cut: int) -> None:
    whole = tokens(llama_rig)
    before = tuple(token.id for token in whole[:cut])
    assert tokens(llama_rig, before) == whole[cut:]
