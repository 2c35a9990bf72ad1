"""One request's sampler; the draw for output index k depends on (seed, k) only.

Order: bias and penalties, temperature, top-k, top-p, min-p, draw; the last five are llama.cpp's samplers.
A grammar is asked about the drawn token alone, and only where it refuses are all candidates masked for a
second draw: checking one token takes microseconds, masking a vocabulary milliseconds.
"""

import ctypes
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from godwit.engines.capi import lib
from godwit.engines.gguf import GgufFile
from godwit.engines.grammar import Grammar, compile_grammar
from godwit.engines.logprobs import alternatives
from godwit.engines.shaping import Shaping
from godwit.errors import BadRequestError, EngineError
from godwit.ports import SequenceSpec
from godwit.types import Sampling, Token, TokenId

Logits = NDArray[np.float32]
_MASK = (1 << 64) - 1
_MOST_GRAMMAR_S = 1.0  # for one token; usual are 0.0001 to 0.05, and everybody else waits meanwhile
_LEAST_TEMPERATURE = 1e-5  # below it logits divided by it leave the range of a float
_RANDOM_SEED = 0xFFFFFFFF  # llama.cpp takes this one to mean "seed yourself from the clock"


def draw_seed(seed: int, index: int, stream: int) -> int:
    """32 bits for the draw of output `index`; `stream` 1 is for a second draw, where a grammar refused."""
    x = (seed & _MASK) ^ (((index << 1) | stream) * 0x9E3779B97F4A7C15 & _MASK)
    for _ in range(2):
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        x ^= x >> 31
    drawn = x >> 32
    return drawn if drawn != _RANDOM_SEED else 0


class Candidates:
    """A buffer of (id, logit, p), as long as the vocabulary, that C samplers filter in place."""

    def __init__(self, num_vocab: int) -> None:
        self._api = lib()
        self._ids = np.arange(num_vocab, dtype=np.int32)
        self._data = np.zeros(num_vocab, dtype=[("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
        self._array = self._api.llama_token_data_array()
        self._start = self._data.ctypes.data_as(self._api.llama_token_data_p)

    def load(self, logits: Logits) -> None:
        """Start afresh with the whole vocabulary."""
        self._data["id"] = self._ids
        self._data["logit"] = logits
        self._array.data, self._array.size = self._start, len(self._ids)
        self._array.selected, self._array.sorted = -1, False

    def apply(self, sampler: Any) -> None:
        """Run one C sampler or chain over what is left."""
        self._api.llama_sampler_apply(sampler, ctypes.byref(self._array))

    def best(self) -> TokenId | None:
        """The most likely token, of equals the lowest id, None where all are masked; before any filter."""
        best = int(self._data["logit"].argmax())
        return best if self._data["logit"][best] > -np.inf else None

    def draw(self, seed: int) -> TokenId:
        """One candidate by its probability among those left."""
        sampler = self._api.llama_sampler_init_dist(seed)
        self.apply(sampler)
        self._api.llama_sampler_free(sampler)
        chosen: int = self._array.data[self._array.selected].id
        return chosen


class Sampler:
    """Draws the outputs of one request; made from a SequenceSpec, it stands where the output so far ends."""

    def __init__(self, spec: SequenceSpec, file: GgufFile, candidates: Candidates) -> None:
        self._api = lib()
        self._sampling = spec.sampling
        self._file = file
        self._candidates = candidates
        self._num_output = 0
        self._grammar: Grammar | None = compile_grammar(file, spec.sampling)
        self._shaping = Shaping(spec.sampling, spec.prompt_ids)
        self._filters = _build_filters(spec.sampling)
        self._is_plain = self._filters is None and self._grammar is None and self._shaping.changes_nothing
        self.accept(spec.output_ids)

    def close(self) -> None:
        """Free what C holds; the sampler must not be used after it."""
        if self._grammar is not None:
            self._grammar.close()
        if self._filters is not None:
            self._api.llama_sampler_free(self._filters)
        self._grammar = self._filters = None

    def accept(self, ids: Sequence[TokenId]) -> None:
        """Advance over output tokens; EngineError where one breaks the grammar."""
        for token in ids:
            if self._grammar is not None:
                if not self._grammar.allows(token):
                    raise EngineError(f"output {self._num_output} does not follow the request's grammar")
                self._grammar.accept(token)
            self._shaping.accept(token)
            self._num_output += 1

    def draw(self, logits: Logits) -> Token | None:
        """The next output token, accepted; None where the sequence ends here.

        A grammar that can only end ends the sequence even where `min_tokens` or `ignore_eos` ask for more.
        """
        started_s = time.monotonic()
        chosen = self._choose(logits)
        if chosen is None or chosen in self._file.eog_ids:
            return None
        self.accept((chosen,))
        if self._grammar is not None and time.monotonic() - started_s > _MOST_GRAMMAR_S:
            # What is ambiguous gets slower with every token.
            raise BadRequestError(
                "the grammar is too ambiguous: it needs seconds for one token", param="grammar"
            )
        num = self._sampling.num_logprobs
        listed = () if num is None else alternatives(logits, chosen, num, self._file.piece)
        return Token(chosen, self._file.piece(chosen), listed)

    @property
    def _forbids_end(self) -> bool:
        return self._sampling.ignore_eos or self._num_output < self._sampling.min_tokens

    def _choose(self, logits: Logits) -> TokenId | None:
        if self._is_plain and not self._forbids_end:
            return int(logits.argmax())
        shaped = self._shape(logits)
        if self._filters is None:
            chosen = int(shaped.argmax())
        else:
            self._candidates.load(shaped)
            chosen = self._pick(stream=0)
        if self._grammar is None or self._grammar.allows(chosen):
            return chosen
        return self._choose_masked(shaped, self._grammar)

    def _choose_masked(self, shaped: Logits, grammar: Grammar) -> TokenId | None:
        """The second draw, among the tokens that the grammar allows; None where it allows none."""
        self._candidates.load(shaped)
        self._candidates.apply(grammar.sampler)
        best = self._candidates.best()
        return best if best is None or self._filters is None else self._pick(stream=1)

    def _shape(self, logits: Logits) -> Logits:
        shaped = logits.copy()
        self._shaping.apply(shaped)
        if self._forbids_end:
            shaped[self._file.eog_ids] = -np.inf
        if self._grammar is not None:
            shaped[self._file.hidden_ids] = -np.inf
        return shaped

    def _pick(self, *, stream: int) -> TokenId:
        self._candidates.apply(self._filters)
        return self._candidates.draw(draw_seed(self._sampling.seed, self._num_output, stream))


def _build_filters(sampling: Sampling) -> Any:
    """The C chain from temperature to min-p; None for greedy, which needs none."""
    if sampling.temperature < _LEAST_TEMPERATURE:
        return None
    api = lib()
    chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
    for step in (
        api.llama_sampler_init_temp(sampling.temperature),
        api.llama_sampler_init_top_k(sampling.top_k),
        api.llama_sampler_init_top_p(sampling.top_p, 1),
        api.llama_sampler_init_min_p(sampling.min_p, 1),
    ):
        api.llama_sampler_chain_add(chain, step)
    return chain
