"""What the fake engine must answer, computed without a cluster: the measure of every moved stream."""

from godwit.engines.fake import FakeOptions, FakeRunner, fake_info
from godwit.engines.runner import Span
from godwit.ports import SequenceSpec
from godwit.types import ModelName, Sampling, Token


def fake_answer(
    prompt: str, sampling: Sampling, options: FakeOptions | None = None
) -> tuple[list[Token], str]:
    """The output tokens and the finish reason for a prompt of text, however often the request moves."""
    options = options or FakeOptions()
    ids = list(prompt.encode())
    context_tokens = len(ids) + sampling.max_tokens
    info = fake_info(ModelName("fake"), 1, context_tokens, options, is_loaded=True)
    runner = FakeRunner(
        info, 1, FakeOptions(eos_after=options.eos_after, eos_probability=options.eos_probability)
    )
    runner.open(0, SequenceSpec(tuple(ids), (), sampling))
    start, output = 0, list[Token]()
    while len(output) < sampling.max_tokens:
        runner.forward([Span(0, start, ids, keep_logits=True)])
        token = runner.draw(0)
        if token is None:
            return output, "stop"
        start += len(ids)
        ids = [token.id]
        output.append(token)
    return output, "length"


def text_of(output: list[Token]) -> str:
    """The text that a client sees of these tokens."""
    return b"".join(token.text for token in output).decode("utf-8", "replace")
