"""The engine that is llama.cpp's own HTTP server, as a child process or one that runs already.

Each output token is one request with all tokens before it. The server's slot has the KV of all but the last,
so that it costs a decode step, as in a stream. A stream would not tell the ids of tokens inside a character,
since it sends a chunk only where the text is whole, nor could each index have a seed of its own.
"""

import shlex
import sys
import threading
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from godwit.engines.capi import lib, load_model
from godwit.engines.chat import find_template, render_with
from godwit.engines.child import ServerProcess, fetch
from godwit.engines.endpoint import reached
from godwit.engines.gguf import GgufFile
from godwit.engines.limits import check_common
from godwit.engines.llamacpp import LlamaOptions, llama_info
from godwit.engines.sampling import draw_seed
from godwit.engines.server import Drawn, Seat
from godwit.errors import BadRequestError, EngineError, ModelLoadError
from godwit.ports import SequenceSpec
from godwit.types import Alternative, ChatMessage, ModelName, Sampling, Token, TokenId

BATCH_TOKENS = 512
"""As many as it computes in one go anyway; it shows its progress after each batch."""
_OWN_SERVER = (sys.executable, "-P", str(Path(__file__).with_name("xllamacpp_server.py")))
# The order that OpenAI's fields mean: the temperature before what cuts the distribution.
_SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p")


class LlamaServerOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """`url` is a server that runs already. Else `command` starts one (None: that of the package xllamacpp),
    with `flags` after Godwit's own."""

    url: str | None = None
    command: str | None = None
    flags: str = "--flash-attn off --no-repack"
    start_timeout_s: float = 300.0
    chat_template: str | None = None


class LlamaServer:
    """Implements `served.Server`; a slot is the server's own of that number."""

    block_tokens = 1

    def __init__(
        self,
        path: Path,
        name: ModelName,
        *,
        slots: int,
        context_tokens: int,
        threads: int,
        options: LlamaServerOptions,
        origin: str | None = None,
        cancelled: threading.Event | None = None,
    ) -> None:
        self.slots = slots
        self._model = load_model(path, vocab_only=True)
        self._file = GgufFile(self._model, path)
        self.info = llama_info(
            self._file,
            name,
            slots,
            context_tokens,
            LlamaOptions(options.chat_template),
            is_loaded=True,
            origin=origin,
        )
        source = options.chat_template or self._file.chat_template
        bos, eos = self._file.text(self._file.bos_id), self._file.text(self._file.eos_id)
        self._template = find_template(source, bos=bos, eos=eos)
        start = partial(self._start, path, context_tokens, threads, options)
        try:
            with reached(
                "llama-server", options.url, start, options.start_timeout_s, cancelled
            ) as self._server:
                self._look(context_tokens)
        except BaseException:
            lib().llama_model_free(self._model)
            raise

    def _start(
        self, path: Path, context_tokens: int, threads: int, options: LlamaServerOptions, port: int
    ) -> ServerProcess:
        command = _OWN_SERVER if options.command is None else tuple(shlex.split(options.command))
        sizes = {
            "--parallel": self.slots,
            "--ctx-size": self.slots * context_tokens,
            "--threads": threads,
            "--batch-size": BATCH_TOKENS,
        }
        flags = [word for flag, value in sizes.items() for word in (flag, str(value))]
        where = ("--model", str(path), "--host", "127.0.0.1", "--port", str(port))
        return ServerProcess((*command, *where, *flags, *shlex.split(options.flags)), {})

    def _look(self, context_tokens: int) -> None:
        """ModelLoadError where the server is not what these requests need."""
        url = self._server.url
        try:
            told = msgspec.json.decode(fetch(f"{url}/props"))
            (model,) = msgspec.json.decode(fetch(f"{url}/v1/models"))["data"]
            slots, room = told["total_slots"], told["default_generation_settings"]["n_ctx"]
            num_vocab = model["meta"]["n_vocab"]
        except (OSError, msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
            raise ModelLoadError(f"{url} does not answer as llama-server does: {error!r}") from error
        if num_vocab != self._file.num_vocab:
            raise ModelLoadError(f"{url} serves another model than {self._file.path}: {model['id']}")
        if slots < self.slots or room < context_tokens:
            raise ModelLoadError(
                f"{url} has {slots} slots of {room} tokens: start it with --parallel {self.slots} "
                f"--ctx-size {self.slots * context_tokens}, or lower worker.slots or worker.context_tokens"
            )

    def tokenize(self, text: str, *, add_special: bool) -> list[TokenId]:
        return self._file.tokenize(text, add_special=add_special)

    def render(self, messages: Sequence[ChatMessage]) -> str:
        return render_with(self._template, self.info.name, messages)

    def piece(self, token: TokenId) -> bytes:
        return self._file.piece(token)

    def check(self, sequence: SequenceSpec) -> None:
        """Grammars are refused: each request starts them anew, and one a token is what draws here."""
        check_common(sequence, num_vocab=self._file.num_vocab, context_tokens=self.info.context_tokens)
        sampling = sequence.sampling
        for name in ("grammar", "json_schema"):
            if getattr(sampling, name) is not None:
                raise BadRequestError(f"engine llama-server follows no {name}: use llamacpp", param=name)
        if sampling.repetition_penalty != 1 and (sampling.presence_penalty or sampling.frequency_penalty):
            raise BadRequestError(
                "engine llama-server takes a repetition_penalty or the other penalties, not both",
                param="repetition_penalty",
            )

    async def prefill(self, seat: Seat, ids: Sequence[TokenId]) -> None:
        await self._ask({"prompt": ids, "n_predict": 0, "id_slot": seat.slot, "cache_prompt": True})

    async def draw(self, seat: Seat, sequence: SequenceSpec) -> AsyncGenerator[Drawn, None]:
        output = list(sequence.output_ids)
        while True:
            body = _body(sequence.sampling, len(output))
            prompt = [*sequence.prompt_ids, *output]
            answer = await self._ask({"prompt": prompt, "id_slot": seat.slot, **body})
            if answer["stop_type"] == "eos":
                yield Drawn((), "stop")
                return
            token = self._token(answer, sequence.sampling.num_logprobs)
            output.append(token.id)
            yield Drawn((token,))

    def _token(self, answer: dict[str, Any], num_logprobs: int | None) -> Token:
        chosen = int(answer["tokens"][0])
        if num_logprobs is None:
            return Token(chosen, self.piece(chosen))
        (seen,) = answer["completion_probabilities"]
        rows = [seen, *seen["top_logprobs"][:num_logprobs]]
        return Token(
            chosen,
            self.piece(chosen),
            tuple(Alternative(row["id"], self.piece(row["id"]), row["logprob"]) for row in rows),
        )

    async def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        async with self._server.post("/completion", body) as answer:
            if answer.status != 200:
                raise EngineError(f"llama-server refused ({answer.status}): {await answer.text()}")
            told: dict[str, Any] = await answer.json()
            return told

    async def is_alive(self) -> bool:
        return await self._server.is_alive()

    async def progress(self) -> object:
        """How far each slot is, told anew after each batch."""
        return await self._server.get("/slots")

    async def close(self) -> None:
        await self._server.close()
        lib().llama_model_free(self._model)


def _body(sampling: Sampling, index: int) -> dict[str, Any]:
    """The request for output `index`: one draw, with the seed that the embedded engine has for it."""
    return {
        "n_predict": 1,
        "cache_prompt": True,
        "return_tokens": True,
        "seed": draw_seed(sampling.seed, index, stream=0),
        "samplers": _SAMPLERS,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        # The penalties of OpenAI's fields count the output alone: the last `index` tokens.
        "repeat_last_n": -1 if sampling.repetition_penalty != 1 else index,
        "logit_bias": sampling.logit_bias,
        "ignore_eos": sampling.ignore_eos or index < sampling.min_tokens,
        "n_probs": 0 if sampling.num_logprobs is None else max(1, sampling.num_logprobs),
    }
