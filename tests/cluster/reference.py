"""Whether a real model's answer is what an unmoved engine draws, where rounding can tip a draw.

llama.cpp's kernels for one token and for many sum in different orders, and so does attention over KV cells
that lie elsewhere: logits differ by up to 0.05 between a token decoded and the same one recomputed. Where a
draw is that close, a moved answer may take the other token, as may the same request beside others. Such a
token must be one that the same draw gives within that rounding; nothing else is let pass.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from godwit.engines.checkpoints import locate
from godwit.engines.llamacpp import LlamaOptions, LlamaRunner
from godwit.engines.runner import Span
from godwit.engines.sampling import Candidates, Sampler
from godwit.ports import SequenceSpec
from godwit.router.openai import ChoicePlan, plan_chat, plan_completion
from godwit.router.text import TextStream
from godwit.types import ChatPrompt, ModelName, TextPrompt, TokenId

NOISE = 0.02  # standard deviation of the logits' rounding; the largest that was seen is 0.05
NUM_TRIALS = 200


class Reference:
    """The model in this process, one sequence at a time, fed one token a pass as an unmoved request is."""

    def __init__(self, name: str) -> None:
        self._runner = LlamaRunner(
            locate(name, None),
            ModelName(name),
            slots=1,
            context_tokens=1024,
            threads=1,
            prefill_chunk=128,
            options=LlamaOptions(),
        )
        self._candidates = Candidates(self._runner._file.num_vocab)

    def close(self) -> None:
        """Free the model."""
        self._runner.close()

    def near_ties(
        self, body: Mapping[str, Any], index: int, ids: Sequence[TokenId], is_over: bool
    ) -> list[int]:
        """Where these outputs of choice `index` are not the undisturbed draw but one within rounding of it.

        With `is_over` the sequence's end is checked too. AssertionError for a token that rounding does not
        explain.
        """
        choice = self._choice(body, index)
        prompt = self._prompt(choice)
        spec = SequenceSpec(prompt, (), choice.sampling)
        self._runner.open(0, spec)
        try:
            return self._walk(spec, [*ids, None] if is_over else list(ids))
        finally:
            self._runner.clear(0)

    def _walk(self, whole: SequenceSpec, outputs: list[TokenId | None]) -> list[int]:
        sampler = self._sampler(whole)
        ties, start, new = [], 0, list(whole.prompt_ids)
        for place, token in enumerate(outputs):
            self._runner.forward([Span(0, start, new, keep_logits=True)])
            drawn = sampler.draw(self._logits)
            if token != (None if drawn is None else drawn.id):
                before = tuple(one for one in outputs[:place] if one is not None)
                sampler.close()
                self._check_tie(SequenceSpec(whole.prompt_ids, before, whole.sampling), token)
                ties.append(place)
                after = before if token is None else (*before, token)
                sampler = self._sampler(SequenceSpec(whole.prompt_ids, after, whole.sampling))
            start += len(new)
            new = [] if token is None else [token]
        sampler.close()
        return ties

    def text(self, body: Mapping[str, Any], ids: Sequence[TokenId]) -> str:
        """The text of these tokens, up to the body's stop string."""
        stop = body.get("stop") or ()
        stream = TextStream((stop,) if isinstance(stop, str) else stop)
        return stream.feed([self._runner.piece(token) for token in ids]) + stream.finish()

    @property
    def _logits(self) -> Any:
        return self._runner._logits[0]

    def _sampler(self, spec: SequenceSpec) -> Sampler:
        return Sampler(spec, self._runner._file, self._candidates)

    def _check_tie(self, spec: SequenceSpec, wanted: TokenId | None) -> None:
        random = np.random.default_rng(0)
        for _ in range(NUM_TRIALS):
            noise = random.normal(0.0, NOISE, self._logits.shape).astype(np.float32)
            sampler = self._sampler(spec)
            drawn = sampler.draw(self._logits + noise)
            sampler.close()
            if (None if drawn is None else drawn.id) == wanted:
                return
        raise AssertionError(
            f"output {len(spec.output_ids)} is {wanted}, which no draw within {NOISE} of the logits gives"
        )

    def _choice(self, body: Mapping[str, Any], index: int) -> ChoicePlan:
        make = plan_chat if "messages" in body else plan_completion
        return make(json.dumps(body).encode(), "reference", lambda: 0, 16).choices[index]

    def _prompt(self, choice: ChoicePlan) -> tuple[TokenId, ...]:
        match choice.prompt:
            case ChatPrompt(messages):
                text = self._runner.render(messages)
                return tuple(self._runner.tokenize(text, add_special=False))
            case TextPrompt(text):
                return tuple(self._runner.tokenize(text, add_special=True))
            case other:
                return other.ids
