"""One request's sampler over llama.cpp's C samplers; the draw for output index k depends on (seed, k) only.

Order: grammar (only where the first draw broke it), logit bias, penalties, temperature, top-k, top-p, min-p.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from godwit.engines.capi import lib
from godwit.engines.gguf import GgufFile
from godwit.engines.grammar import Grammar, compile_grammar
from godwit.engines.logprobs import alternatives
from godwit.errors import EngineError
from godwit.ports import SequenceSpec
from godwit.types import Sampling, Token, TokenId

Logits = NDArray[np.float32]
_MASK = (1 << 64) - 1
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
    """A buffer of (id, logit, p) for the whole vocabulary that C samplers filter in place."""

    def __init__(self, num_vocab: int) -> None:
        self._api = lib()
        self._ids = np.arange(num_vocab, dtype=np.int32)
        self._data = np.zeros(num_vocab, dtype=[("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
        self._array = self._api.llama_token_data_array()
        self._start = self._data.ctypes.data_as(self._api.llama_token_data_p)

    def load(self, logits: Logits) -> None:
        """Start afresh from raw logits."""
        self._data["id"] = self._ids
        self._data["logit"] = logits
        self._array.data, self._array.size = self._start, len(self._ids)
        self._array.selected, self._array.sorted = -1, False

    def forbid(self, ids: Sequence[TokenId]) -> None:
        """Rule tokens out; only right after `load`, while positions are ids."""
        self._data["logit"][ids] = -np.inf

    def apply(self, sampler: Any) -> None:
        """Run one C sampler or chain over what is left."""
        self._api.llama_sampler_apply(sampler, ctypes.byref(self._array))

    @property
    def has_any(self) -> bool:
        """Whether any token is still allowed; only while all of the vocabulary is in the buffer."""
        return bool(np.any(self._data["logit"] > -np.inf))

    def best(self) -> TokenId:
        """The most likely token left; of equals the lowest id. Only while positions are ids."""
        return int(self._data["logit"].argmax())

    def draw(self, seed: int) -> TokenId:
        """One token by its probability among those left."""
        sampler = self._api.llama_sampler_init_dist(seed)
        self.apply(sampler)
        self._api.llama_sampler_free(sampler)
        chosen: int = self._array.data[self._array.selected].id
        return chosen


class Sampler:
    """Draws the outputs of one request; made from a SequenceSpec, it stands where the output so far ends."""

    def __init__(
        self, spec: SequenceSpec, file: GgufFile, candidates: Candidates, *, context_tokens: int
    ) -> None:
        self._api = lib()
        self._sampling = spec.sampling
        self._file = file
        self._candidates = candidates
        self._num_output = 0
        self._grammar: Grammar | None = compile_grammar(file, spec.sampling)
        self._chain, counts_prompt = _build_chain(spec.sampling, file.num_vocab, context_tokens)
        if counts_prompt is not None:
            for token in spec.prompt_ids:
                self._api.llama_sampler_accept(counts_prompt, token)
        self._is_greedy = _is_greedy(spec.sampling)
        self._is_plain = self._chain is None and self._grammar is None
        self.accept(spec.output_ids)

    def close(self) -> None:
        """Free what C holds; the sampler must not be used after it."""
        if self._grammar is not None:
            self._grammar.close()
        if self._chain is not None:
            self._api.llama_sampler_free(self._chain)
        self._grammar = self._chain = None

    def accept(self, ids: Sequence[TokenId]) -> None:
        """Advance over output tokens; EngineError where one breaks the grammar."""
        for token in ids:
            if self._grammar is not None:
                if not self._grammar.allows(token):
                    raise EngineError(f"output {self._num_output} does not follow the request's grammar")
                self._grammar.accept(token)
            if self._chain is not None:
                self._api.llama_sampler_accept(self._chain, token)
            self._num_output += 1

    def draw(self, logits: Logits) -> Token | None:
        """The next output token, accepted; None where the sequence ends here.

        A grammar that can only end ends the sequence even where `min_tokens` or `ignore_eos` ask for more.
        """
        chosen = self._choose(logits)
        if chosen is None or chosen in self._file.eog_ids:
            return None
        self.accept((chosen,))
        num = self._sampling.num_logprobs
        listed = () if num is None else alternatives(logits, chosen, num, self._file.piece)
        return Token(chosen, self._file.piece(chosen), listed)

    @property
    def _forbids_end(self) -> bool:
        return self._sampling.ignore_eos or self._num_output < self._sampling.min_tokens

    def _choose(self, logits: Logits) -> TokenId | None:
        if self._is_plain and not self._forbids_end:
            return int(logits.argmax())
        self._load(logits)
        chosen = self._pick(stream=0)
        # Checking one token is far cheaper than masking the vocabulary, and nearly all pass.
        if self._grammar is None or self._grammar.allows(chosen):
            return chosen
        self._load(logits)
        self._candidates.apply(self._grammar.sampler)
        return self._pick(stream=1) if self._candidates.has_any else None

    def _load(self, logits: Logits) -> None:
        self._candidates.load(logits)
        if self._forbids_end:
            self._candidates.forbid(self._file.eog_ids)
        if self._grammar is not None:
            self._candidates.forbid(self._grammar.hidden_ids)

    def _pick(self, *, stream: int) -> TokenId:
        if self._chain is not None:
            self._candidates.apply(self._chain)
        if self._is_greedy:
            return self._candidates.best()
        return self._candidates.draw(draw_seed(self._sampling.seed, self._num_output, stream))


def _is_greedy(sampling: Sampling) -> bool:
    return sampling.temperature < _LEAST_TEMPERATURE


def _build_chain(sampling: Sampling, num_vocab: int, context_tokens: int) -> tuple[Any, Any]:
    """The C chain, None where nothing changes the logits, and its member (or None) that counts the prompt."""
    api = lib()
    steps: list[Any] = []
    counts_prompt = None
    if sampling.logit_bias:
        biases = (api.llama_logit_bias * len(sampling.logit_bias))(*sampling.logit_bias)
        steps.append(api.llama_sampler_init_logit_bias(num_vocab, len(biases), biases))
    if sampling.presence_penalty or sampling.frequency_penalty:
        weights = (1.0, sampling.frequency_penalty, sampling.presence_penalty)
        steps.append(api.llama_sampler_init_penalties(num_vocab, context_tokens, *weights))
    if sampling.repetition_penalty != 1.0:
        weights = (sampling.repetition_penalty, 0.0, 0.0)
        counts_prompt = api.llama_sampler_init_penalties(num_vocab, context_tokens, *weights)
        steps.append(counts_prompt)
    if not _is_greedy(sampling):
        steps.append(api.llama_sampler_init_temp(sampling.temperature))
        steps.append(api.llama_sampler_init_top_k(sampling.top_k))
        steps.append(api.llama_sampler_init_top_p(sampling.top_p, 1))
        steps.append(api.llama_sampler_init_min_p(sampling.min_p, 1))
    if not steps:
        return None, None
    chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
    for step in steps:
        api.llama_sampler_chain_add(chain, step)
    return chain, counts_prompt
