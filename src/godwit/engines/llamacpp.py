"""The engine that computes with llama.cpp, embedded: one model, one context, one KV slot a sequence id."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from godwit.engines.capi import lib, load_model
from godwit.engines.chat import ChatTemplate, find_template, render_with
from godwit.engines.checkpoints import digest
from godwit.engines.gguf import GgufFile, open_vocabulary
from godwit.engines.grammar import compile_grammar
from godwit.engines.identity import identity
from godwit.engines.limits import check_common, check_trained
from godwit.engines.runner import Span
from godwit.engines.sampling import Candidates, Sampler
from godwit.engines.sequence import TAIL_TOKENS
from godwit.engines.trial import GrammarTrials
from godwit.errors import ContextTooLongError, EngineError, ModelLoadError
from godwit.ports import SequenceSpec
from godwit.types import ChatMessage, KvRange, ModelInfo, ModelName, Sampling, Token, TokenId

USUAL_PIECE_BYTES = 16  # shorter prompts are tokenized without a look at the whole vocabulary
SPARE_SEQUENCES = 2  # ids beyond the slots: a companion for lone rows, and ranges of KV on their way


class LlamaOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """`chat_template` is jinja text that replaces the model file's own; `repack` as in `load_model`.

    Flash attention is off: on CPUs it makes passes over 2 to 48 tokens up to five times slower.
    """

    chat_template: str | None = None
    flash_attention: bool = False
    repack: bool = False


def llama_info(
    file: GgufFile,
    name: ModelName,
    slots: int,
    context_tokens: int,
    options: LlamaOptions,
    *,
    is_loaded: bool,
    origin: str | None = None,
) -> ModelInfo:
    """What a worker announces for a GGUF file; ConfigError where the context is more than the model knows."""
    check_trained(name, context_tokens, file.trained_context_tokens)
    file_bytes = file.path.stat().st_size
    return ModelInfo(
        name=name,
        digest=digest(file.path) if origin is None else identity(origin, file.pieces()),
        context_tokens=context_tokens,
        device_bytes=file_bytes + slots * context_tokens * file.kv_bytes_per_token(),
        is_loaded=is_loaded,
        has_chat_template=(options.chat_template or file.chat_template) is not None,
        checkpoint_bytes=file_bytes,
    )


def describe_file(
    path: Path,
    name: ModelName,
    slots: int,
    context_tokens: int,
    options: LlamaOptions,
    origin: str | None = None,
) -> ModelInfo:
    """`llama_info` of a model that is not loaded; reads the vocabulary, not the weights."""
    with open_vocabulary(path) as file:
        return llama_info(file, name, slots, context_tokens, options, is_loaded=False, origin=origin)


class LlamaRunner:
    """A Runner over llama.cpp; `forward` is one llama_decode, and a slot is the sequence id of its number."""

    def __init__(
        self,
        path: Path,
        name: ModelName,
        *,
        slots: int,
        context_tokens: int,
        threads: int,
        prefill_chunk: int,
        options: LlamaOptions,
        origin: str | None = None,
    ) -> None:
        self._api = lib()
        self._slots = slots
        self._model = load_model(path, vocab_only=False, repack=options.repack)
        self._file = GgufFile(self._model, path)
        self._info = llama_info(
            self._file, name, slots, context_tokens, options, is_loaded=True, origin=origin
        )
        self._template = _template(self._file, options)
        max_rows = prefill_chunk + slots * TAIL_TOKENS + 1
        self._context = self._make_context(max_rows, threads, options)
        self._memory = self._api.llama_get_memory(self._context)
        self._batch = _Batch(max_rows)
        self._logits = np.zeros((slots, self._file.num_vocab), dtype=np.float32)
        self._candidates = Candidates(self._file.num_vocab)
        self._samplers: dict[int, Sampler] = {}
        self._trials = GrammarTrials(path)
        can_cut = not (
            self._api.llama_model_is_recurrent(self._model) or self._api.llama_model_is_hybrid(self._model)
        )
        # Without flash attention V is stored transposed, so that a state means another thing.
        kind = "flash" if options.flash_attention else "plain"
        self._kv_layout = f"llama-cpp-python {self._api.__version__}, f16, {kind}" if can_cut else None

    def _make_context(self, max_rows: int, threads: int, options: LlamaOptions) -> Any:
        api = self._api
        params = api.llama_context_default_params()
        params.n_ctx = self._slots * self._info.context_tokens
        params.n_batch = params.n_ubatch = max_rows
        params.n_seq_max = params.n_outputs_max = self._slots + SPARE_SEQUENCES
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = True
        params.no_perf = True
        params.flash_attn_type = int(options.flash_attention)
        context = api.llama_init_from_model(self._model, params)
        if not context:
            api.llama_model_free(self._model)
            raise ModelLoadError(
                f"no memory for {self._slots} slots of {self._info.context_tokens} tokens: "
                "lower slots or context_tokens"
            )
        return context

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def slots(self) -> int:
        return self._slots

    def forward(self, spans: Sequence[Span]) -> None:
        rows = self._batch.fill(spans, spare_slot=self._slots)
        result = self._api.llama_decode(self._context, self._batch.struct)
        if result != 0:
            raise EngineError(f"llama_decode failed with {result} on {self._batch.struct.n_tokens} tokens")
        if self._batch.is_padded:
            self._api.llama_memory_seq_rm(self._memory, self._slots, -1, -1)
        num_bytes = self._logits.shape[1] * 4
        for slot, row in rows:
            source = self._api.llama_get_logits_ith(self._context, row)
            ctypes.memmove(self._logits[slot].ctypes.data, source, num_bytes)

    def open(self, slot: int, sequence: SequenceSpec) -> None:
        self._samplers[slot] = Sampler(sequence, self._file, self._candidates)

    def accept(self, slot: int, ids: Sequence[TokenId]) -> None:
        self._samplers[slot].accept(ids)

    def draw(self, slot: int) -> Token | None:
        return self._samplers[slot].draw(self._logits[slot])

    @property
    def kv_layout(self) -> str | None:
        return self._kv_layout

    def export_kv(self, slot: int, kv: KvRange) -> bytearray:
        api, spare = self._api, self._slots + 1
        api.llama_memory_seq_cp(self._memory, slot, spare, kv.first, kv.last)
        data = bytearray(api.llama_state_seq_get_size(self._context, spare))
        size = api.llama_state_seq_get_data(self._context, _pointer(data), len(data), spare)
        api.llama_memory_seq_rm(self._memory, spare, -1, -1)
        if size != len(data):
            raise EngineError(f"llama.cpp exported {size} of {len(data)} bytes of KV")
        return data

    def import_kv(self, slot: int, kv: KvRange, data: bytearray) -> None:
        api, spare = self._api, self._slots + 1
        try:
            size = api.llama_state_seq_set_data(self._context, _pointer(data), len(data), spare)
            # Under a sliding window the older part of a range is gone, or even all of it.
            end = api.llama_memory_seq_pos_max(self._memory, spare) + 1
            is_gone = end == 0 and api.llama_model_n_swa(self._model) > 0
            if size != len(data) or not (end == kv.last or is_gone):
                raise EngineError(f"llama.cpp took {size} of {len(data)} bytes of KV, up to token {end}")
            api.llama_memory_seq_cp(self._memory, spare, slot, -1, -1)
        finally:
            api.llama_memory_seq_rm(self._memory, spare, -1, -1)

    def clear(self, slot: int) -> None:
        self._api.llama_memory_seq_rm(self._memory, slot, -1, -1)
        sampler = self._samplers.pop(slot, None)
        if sampler is not None:
            sampler.close()

    def interrupt(self) -> None:
        """A pass ends by itself after one chunk."""

    def close(self) -> None:
        for sampler in self._samplers.values():
            sampler.close()
        self._samplers.clear()
        self._trials.close()
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)

    def tokenize(self, text: str, *, add_special: bool) -> list[TokenId]:
        # A megabyte takes a second, in the worker's event loop: what cannot fit must not take it.
        num_bytes, limit = len(text.encode()), self._info.context_tokens
        if num_bytes > limit * USUAL_PIECE_BYTES and num_bytes > limit * self._file.max_piece_bytes:
            raise ContextTooLongError(
                f"the prompt has {num_bytes} bytes and the context is {limit} tokens: shorten it",
                param="prompt",
            )
        return self._file.tokenize(text, add_special=add_special)

    def render(self, messages: Sequence[ChatMessage]) -> str:
        return render_with(self._template, self._info.name, messages)

    def try_out(self, sampling: Sampling) -> None:
        self._trials.check(sampling)

    def piece(self, token: TokenId) -> bytes:
        return self._file.piece(token)

    def check(self, sequence: SequenceSpec) -> None:
        check_common(sequence, num_vocab=self._file.num_vocab, context_tokens=self._info.context_tokens)
        grammar = compile_grammar(self._file, sequence.sampling)
        if grammar is not None:
            grammar.close()


def _pointer(data: bytearray) -> Any:
    """The array that a bytearray holds, without a copy."""
    return (ctypes.c_uint8 * len(data)).from_buffer(data)


def _template(file: GgufFile, options: LlamaOptions) -> ChatTemplate | None:
    source = options.chat_template or file.chat_template
    return find_template(source, bos=file.text(file.bos_id), eos=file.text(file.eos_id))


class _Batch:
    """A llama_batch whose arrays are numpy's, filled by slices.

    It never has one row alone, nor one row alone with logits: llama.cpp multiplies a single row by another
    kernel, which rounds differently, so that a token's KV would depend on the company it was computed in.
    """

    def __init__(self, max_rows: int) -> None:
        api = lib()
        self.is_padded = False
        self._tokens = np.zeros(max_rows, dtype=np.int32)
        self._positions = np.zeros(max_rows, dtype=np.int32)
        self._slots = np.zeros(max_rows, dtype=np.int32)
        self._wanted = np.zeros(max_rows, dtype=np.int8)
        self._counts = np.ones(max_rows, dtype=np.int32)
        # One pointer a row to the row's only sequence id.
        self._pointers = self._slots.ctypes.data + 4 * np.arange(max_rows, dtype=np.uintp)
        int_p = ctypes.POINTER(ctypes.c_int32)
        self.struct = api.llama_batch()
        self.struct.token = self._tokens.ctypes.data_as(int_p)
        self.struct.pos = self._positions.ctypes.data_as(int_p)
        self.struct.n_seq_id = self._counts.ctypes.data_as(int_p)
        self.struct.seq_id = self._pointers.ctypes.data_as(ctypes.POINTER(int_p))
        self.struct.logits = self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))

    def fill(self, spans: Sequence[Span], *, spare_slot: int) -> list[tuple[int, int]]:
        """Lay the spans out as rows; the (slot, row) of each whose logits are kept.

        A row alone gets a companion in `spare_slot`, `is_padded` says so: it must be cleared after the pass.
        """
        start, kept = 0, []
        for span in spans:
            end = self._put(start, span.slot, span.start, span.ids)
            if span.keep_logits:
                self._wanted[end - 1] = 1
                kept.append((span.slot, end - 1))
            start = end
        self.is_padded = start == 1
        if self.is_padded:
            start = self._put(start, spare_slot, 0, spans[0].ids)
        if len(kept) == 1:
            row = kept[0][1]
            self._wanted[row - 1 if row else 1] = 1
        self.struct.n_tokens = start
        return kept

    def _put(self, start: int, slot: int, position: int, ids: Sequence[TokenId]) -> int:
        """Write one run of rows without logits; the row after it."""
        end = start + len(ids)
        self._tokens[start:end] = ids
        self._positions[start:end] = range(position, position + len(ids))
        self._slots[start:end] = slot
        self._wanted[start:end] = 0
        return end
