"""The engine that is a vLLM server, unpatched: a child process of the worker, or one that runs already.

Rounds are requests for one token, which leave the KV of all full blocks in the prefix cache. KV is shipped by
vLLM's own NixlConnector (`godwit.engines.nixl`).
"""

import re
import shlex
import sys
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
from msgspec import Struct

from godwit.engines.chat import find_template, render_with
from godwit.engines.child import ServerProcess, fetch, free_port, parse_environ
from godwit.engines.endpoint import reached
from godwit.engines.ends import llama_ends
from godwit.engines.hf import HfFolder
from godwit.engines.identity import identity
from godwit.engines.limits import check_common, check_trained
from godwit.engines.nixl import LEASE_S, NixlKv
from godwit.engines.server import Drawn, Seat
from godwit.errors import BadRequestError, EngineError, GodwitError, ModelLoadError
from godwit.ports import SequenceSpec
from godwit.types import (
    Alternative,
    Carries,
    ChatMessage,
    ModelInfo,
    ModelName,
    Sampling,
    Token,
    TokenId,
    declaring,
)

_ENDS = (None, "stop", "length")
_COMPUTED = re.compile(
    rb"^vllm:(?:kv_cache_usage_perc|prompt_tokens_total|generation_tokens_total)\{.*", re.MULTILINE
)
_QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
_NIXL = {
    "kv_connector": "NixlConnector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"kv_lease_duration": LEASE_S},
}


class VllmOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """`url` is a server that runs already. Else `python` names the interpreter that has vLLM, `flags` are
    vLLM's own after Godwit's, and `env` is more environment: "A=1 B=2".

    `dtype` is vLLM's flag; on a CPU "auto" serves float32 folders in bfloat16. Without `share_prefixes` no
    request finds another one's KV in the prefix cache, nor its own of an earlier stay. With `nixl` KV moves
    too: `kv_host` is the address at which other servers reach this one's KV, `kv_device` where their
    buffers are. Threads are kept to `cores`, as in "0,1". `device_bytes` is what an instance takes (None:
    weights and KV).
    """

    url: str | None = None
    python: str = sys.executable
    flags: str = ""
    env: str = ""
    start_timeout_s: float = 600.0
    chat_template: str | None = None
    dtype: str = "auto"
    share_prefixes: bool = True
    nixl: bool = False
    kv_host: str = "127.0.0.1"
    kv_device: str = "cpu"
    cores: str | None = None
    device_bytes: int | None = None


def vllm_info(
    folder: HfFolder,
    name: ModelName,
    slots: int,
    context_tokens: int,
    options: VllmOptions,
    *,
    is_loaded: bool,
    origin: str | None = None,
) -> ModelInfo:
    """What a worker announces for a model folder; ConfigError where the model's context is shorter."""
    check_trained(name, context_tokens, folder.trained_context_tokens)
    kv_bytes = slots * context_tokens * folder.kv_bytes_per_token(options.dtype)
    info = ModelInfo(
        name=name,
        digest=folder.digest() if origin is None else identity(origin, folder.pieces),
        context_tokens=context_tokens,
        device_bytes=options.device_bytes or folder.checkpoint_bytes + kv_bytes,
        is_loaded=is_loaded,
        has_chat_template=(options.chat_template or folder.chat_template) is not None,
        checkpoint_bytes=folder.checkpoint_bytes,
    )
    return declaring(info, Carries(kv=options.nixl))


class VllmServer:
    """Implements `served.Server`; slots are only counted, for vLLM batches whatever comes."""

    def __init__(
        self,
        path: Path,
        name: ModelName,
        *,
        slots: int,
        context_tokens: int,
        options: VllmOptions,
        origin: str | None = None,
        cancelled: threading.Event | None = None,
    ) -> None:
        self.slots = slots
        self._folder = HfFolder(path)
        self._pieces = self._folder.pieces
        self._ends = self._folder.eos_ids
        if origin is not None:
            # Requests cross to llama.cpp and back, and must end in the same places.
            self._ends |= llama_ends(self._folder.vocabulary)
        self.info = vllm_info(
            self._folder, name, slots, context_tokens, options, is_loaded=True, origin=origin
        )
        source = options.chat_template or self._folder.chat_template
        bos, eos = self._folder.special("bos_token"), self._folder.special("eos_token")
        self._template = find_template(source, bos=bos, eos=eos)
        self._shares_prefixes = options.share_prefixes
        start = partial(self._start, path, options)
        with reached("vLLM server", options.url, start, options.start_timeout_s, cancelled) as self._server:
            told = self._look()
        self.block_tokens = told.block_tokens
        kv_bytes = self._folder.kv_bytes_per_token(options.dtype)
        kind = f"{told.block_tokens} tokens a block, {kv_bytes} bytes a token"
        layout = f"vllm {told.version}, nixl, {kind}"
        self.kv = NixlKv(self.complete, layout, kv_bytes) if options.nixl else None

    def _look(self) -> "_Facts":
        """What the server tells of itself; ModelLoadError where it cannot serve this model."""
        told = _facts(self.url)
        if self.info.name not in told.models:
            served = ", ".join(told.models)
            raise ModelLoadError(
                f"{self.url} serves {served}: start it with --served-model-name {self.info.name}"
            )
        longest = told.models[self.info.name]
        if longest is not None and longest < self.info.context_tokens:
            raise ModelLoadError(
                f"{self.url} takes {longest} tokens, and worker.context_tokens is "
                f"{self.info.context_tokens}: start it with a larger --max-model-len, or lower the setting"
            )
        return told

    def _start(self, path: Path, options: VllmOptions, port: int) -> ServerProcess:
        sizes = {
            "--port": port,
            "--max-model-len": self.info.context_tokens,
            # Exports of KV are requests of their own beside those that they are for.
            "--max-num-seqs": 2 * self.slots,
            "--dtype": options.dtype,
        }
        flags = [word for flag, value in sizes.items() for word in (flag, str(value))]
        environ = _QUIET | parse_environ(options.env)
        if options.nixl:
            transfer = _NIXL | {"kv_buffer_device": options.kv_device}
            flags += ["--kv-transfer-config", msgspec.json.encode(transfer).decode()]
            environ |= {
                "VLLM_NIXL_SIDE_CHANNEL_HOST": options.kv_host,
                "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
            }
        command = (
            *(options.python, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(path), "--served-model-name", self.info.name, "--host", "127.0.0.1"),
            *("--enable-prompt-tokens-details", *flags, *shlex.split(options.flags)),
        )
        cores = None if options.cores is None else set(map(int, options.cores.split(",")))
        return ServerProcess(command, environ, cores)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def pid(self) -> int | None:
        return self._server.pid

    def tokenize(self, text: str, *, add_special: bool) -> list[TokenId]:
        return self._folder.tokenize(text, add_special=add_special, context_tokens=self.info.context_tokens)

    def render(self, messages: Sequence[ChatMessage]) -> str:
        return render_with(self._template, self.info.name, messages)

    def piece(self, token: TokenId) -> bytes:
        return self._pieces[token]

    def check(self, sequence: SequenceSpec) -> None:
        """A grammar is refused where there is output already: vLLM would begin it anew."""
        check_common(sequence, num_vocab=len(self._pieces), context_tokens=self.info.context_tokens)
        for name in ("grammar", "json_schema"):
            if sequence.output_ids and getattr(sequence.sampling, name) is not None:
                raise BadRequestError(f"vLLM cannot continue a {name} that has begun", param=name)

    async def prefill(self, seat: Seat, ids: Sequence[TokenId]) -> None:
        await self.complete(seat, {"prompt": ids, "max_tokens": 1, "temperature": 0})

    async def draw(self, seat: Seat, sequence: SequenceSpec) -> AsyncGenerator[Drawn, None]:
        sampling, num_output = sequence.sampling, len(sequence.output_ids)
        num_tokens = len(sequence.prompt_ids) + num_output
        room = min(sampling.max_tokens - num_output, self.info.context_tokens - num_tokens)
        body = {"prompt": [*sequence.prompt_ids, *sequence.output_ids], "stream": True, "max_tokens": room}
        body |= _sampling(sampling, num_output, room) | {"stop_token_ids": sorted(self._ends)}
        async with self._post(seat, body) as answer:
            await _check(answer)
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                told = msgspec.json.decode(line[6:])
                if "error" in told:
                    raise _refusal(told["error"].get("code", 500), told["error"].get("message", ""))
                for choice in told["choices"]:
                    yield self._drawn(choice, sampling.num_logprobs or 0)

    def _drawn(self, choice: dict[str, Any], num_best: int) -> Drawn:
        ids, finish = choice.get("token_ids") or [], choice.get("finish_reason")
        if finish not in _ENDS:
            raise EngineError(f"vLLM broke an answer off: {finish}")
        if ids and not 0 <= min(ids) <= max(ids) < len(self._pieces):
            raise EngineError(f"vLLM drew ids {ids} of a vocabulary of {len(self._pieces)}")
        if finish == "stop" and ids and ids[-1] in self._ends:
            ids = ids[:-1]
        seen = choice.get("logprobs")
        tokens = [
            Token(
                token,
                self.piece(token),
                () if seen is None else self._alternatives(seen, at, token, num_best),
            )
            for at, token in enumerate(ids)
        ]
        return Drawn(tokens, finish)

    def _alternatives(
        self, seen: dict[str, Any], at: int, chosen: TokenId, num_best: int
    ) -> tuple[Alternative, ...]:
        """The chosen token, then the best: vLLM names each as "token_id:…", the chosen among them always."""
        best = {_id(name): value for name, value in (seen["top_logprobs"][at] or {}).items()}
        ranked = sorted(best.items(), key=lambda one: (-one[1], one[0]))[:num_best]
        rows = [(chosen, seen["token_logprobs"][at]), *ranked]
        return tuple(Alternative(token, self.piece(token), value) for token, value in rows)

    async def is_alive(self) -> bool:
        return await self._server.is_alive()

    async def progress(self) -> object:
        """A prompt takes its blocks chunk by chunk; what has been computed is counted at its end."""
        return _COMPUTED.findall(await self._server.get("/metrics"))

    async def close(self) -> None:
        await self._server.close()

    def _post(self, seat: Seat, body: dict[str, Any]) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        # Hashed, for vLLM takes no "@".
        salt = {} if self._shares_prefixes else {"cache_salt": sha256(seat.name.encode()).hexdigest()}
        return self._server.post("/v1/completions", {"model": self.info.name, **salt, **body})

    async def complete(self, seat: Seat, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a completion request that does not stream; EngineError where vLLM refuses."""
        async with self._post(seat, body) as answer:
            await _check(answer)
            told: dict[str, Any] = await answer.json()
            return told


async def _check(answer: aiohttp.ClientResponse) -> None:
    if answer.status != 200:
        raise _refusal(answer.status, await answer.text())


def _refusal(status: int, message: str) -> GodwitError:
    """What is wrong with the request itself would be wrong with it everywhere."""
    kind = BadRequestError if status == 400 else EngineError
    return kind(f"vLLM refused ({status}): {message[:500]}")


class _Facts(NamedTuple):
    """`models` are the names that are served, each with its longest context where that is told."""

    version: str
    block_tokens: int
    models: dict[str, int | None]


def _facts(url: str) -> _Facts:
    """What only the server itself knows; ModelLoadError where it is no vLLM server."""
    try:
        version = msgspec.json.decode(fetch(f"{url}/version"))["version"]
        served = msgspec.json.decode(fetch(f"{url}/v1/models"))["data"]
        models = {one["id"]: one.get("max_model_len") for one in served}
        metrics = fetch(f"{url}/metrics").decode()
    except (OSError, msgspec.MsgspecError, KeyError, TypeError) as error:
        raise ModelLoadError(f"{url} does not answer as vLLM does: {error!r}") from error
    if (found := re.search(r'cache_config_info\{[^}]*block_size="(\d+)"', metrics)) is None:
        raise ModelLoadError(f"{url}/metrics does not tell the block size: is prefix caching on?")
    return _Facts(str(version), int(found[1]), models)


def _id(name: str) -> TokenId:
    return int(name.removeprefix("token_id:"))


def _sampling(sampling: Sampling, num_output: int, room: int) -> dict[str, Any]:
    """The request's fields, with counts that are left, for `room` outputs.

    A seed would begin anew, so that it is another one. vLLM's `ignore_eos` would let ends be drawn as output:
    they are forbidden for all outputs instead, as in the embedded engine.
    """
    min_tokens = room if sampling.ignore_eos else sampling.min_tokens - num_output
    body: dict[str, Any] = {
        "return_token_ids": True,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "seed": sampling.seed + num_output,
        "min_tokens": max(0, min(min_tokens, room)),
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
    }
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    if sampling.num_logprobs is not None:
        body |= {"logprobs": sampling.num_logprobs, "return_tokens_as_token_ids": True}
    if sampling.json_schema is not None:
        body["structured_outputs"] = {"json": msgspec.json.decode(sampling.json_schema)}
    elif sampling.grammar is not None:
        body["structured_outputs"] = {"grammar": sampling.grammar}
    return body
