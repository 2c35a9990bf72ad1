"""What is made of a vLLM server's answers, however odd, by a server that sends scripted ones."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import aclosing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from godwit.engines import create_engine, describe
from godwit.engines.served import ServedEngine
from godwit.engines.server import Drawn, Seat
from godwit.engines.vllm import VllmOptions, VllmServer
from godwit.errors import BadRequestError, ConfigError, EngineError, ModelLoadError
from godwit.ports import SequenceSpec
from godwit.types import ModelName, RequestId, Sampling
from tests.engines.rig import Rig

NAME = ModelName("tiny")
EOS, OTHER, END_OF_TEXT = 256, 257, 258
CONTEXT_TOKENS = 64
GREEDY = Sampling(seed=1, max_tokens=8, temperature=0.0)
SPEC = SequenceSpec((1, 2, 3), (), GREEDY)
METRICS = 'vllm:cache_config_info{block_size="16",engine="0"} 1.0\n'


class Scripted(ThreadingHTTPServer):
    """Answers to GET by path, and to completions in turn; what was asked is in `asked`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.told = {
            "/health": "",
            "/version": '{"version": "0"}',
            "/v1/models": json.dumps({"data": [{"id": NAME, "max_model_len": CONTEXT_TOKENS}]}),
            "/metrics": METRICS,
        }
        self.answers: list[list[str]] = []
        self.asked: list[dict[str, Any]] = []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Scripted

    def do_GET(self) -> None:
        told = self.server.told.get(self.path)
        self.send_response(404 if told is None else 200)
        self.end_headers()
        self.wfile.write((told or "").encode())

    def do_POST(self) -> None:
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()
        for line in self.server.answers.pop(0):
            self.wfile.write(f"data: {line}\n\n".encode())

    def log_message(self, *_: object) -> None:
        """Not to stderr."""


@pytest.fixture
def server() -> Iterator[Scripted]:
    server = Scripted()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of bytes; its weights are not read."""
    path = tmp_path_factory.mktemp("tiny")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: number for number, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>", "<other>", "<|endoftext|>"])
    tokenizer.enable_truncation(4)
    tokenizer.save(str(path / "tokenizer.json"))
    sizes = {"vocab_size": EOS + 4, "num_attention_heads": 2, "hidden_size": 8, "num_hidden_layers": 1}
    (path / "config.json").write_text(json.dumps(sizes | {"eos_token_id": EOS}))
    (path / "model.safetensors").write_bytes(b"weights")
    return path


def attached(
    server: Scripted, folder: Path, *, url: str | None = None, origin: str | None = None
) -> VllmServer:
    options = VllmOptions(url=url or server.url)
    return VllmServer(folder, NAME, slots=2, context_tokens=CONTEXT_TOKENS, options=options, origin=origin)


def choice(ids: list[int], finish: str | None = None, logprobs: object = None) -> str:
    return json.dumps({"choices": [{"token_ids": ids, "finish_reason": finish, "logprobs": logprobs}]})


def drawn(
    server: Scripted,
    folder: Path,
    lines: list[str],
    spec: SequenceSpec = SPEC,
    *,
    origin: str | None = None,
) -> list[Drawn]:
    """All that comes of one answer."""
    server.answers.append(lines)

    async def draw() -> list[Drawn]:
        client = attached(server, folder, origin=origin)
        async with aclosing(client.draw(Seat(0, RequestId("stay")), spec)) as answer:
            found = [one async for one in answer]
        await client.close()
        return found

    return asyncio.run(draw())


def test_the_end_of_sequence_is_no_output(server: Scripted, folder: Path) -> None:
    answers = drawn(server, folder, [choice([]), choice([7, 8]), choice([9, EOS], "stop"), "[DONE]"])
    assert [([t.id for t in one.tokens], one.finish) for one in answers] == [
        ([], None),
        ([7, 8], None),
        ([9], "stop"),
    ]


@pytest.mark.parametrize(("origin", "ends"), [(None, [EOS]), ("weights", [EOS, END_OF_TEXT])])
def test_a_model_with_an_origin_ends_where_llama_cpp_ends_it(
    server: Scripted, folder: Path, origin: str | None, ends: list[int]
) -> None:
    if origin is not None:
        pytest.importorskip("llama_cpp")
    (answer,) = drawn(server, folder, [choice([7, ends[-1]], "stop")], origin=origin)
    assert ([token.id for token in answer.tokens], answer.finish) == ([7], "stop")
    assert server.asked[0]["stop_token_ids"] == ends


def test_under_ignore_eos_no_end_may_be_drawn(server: Scripted, folder: Path) -> None:
    """vLLM's own ignore_eos would send ends as output."""
    sampling = Sampling(seed=1, max_tokens=20, ignore_eos=True)
    drawn(server, folder, [choice([7], "length")], SequenceSpec((1,), (2, 3), sampling))
    (asked,) = server.asked
    assert (asked["max_tokens"], asked["min_tokens"], asked.get("ignore_eos", False)) == (18, 18, False)


def test_a_chosen_token_beside_the_best_is_not_one_of_them(server: Scripted, folder: Path) -> None:
    seen = {
        "token_logprobs": [-3.0],
        "top_logprobs": [{"token_id:9": -3.0, "token_id:5": -0.5, "token_id:4": -1.0}],
    }
    for num, best in ((2, [5, 4]), (1, [5]), (0, [])):
        spec = SequenceSpec((1,), (), Sampling(seed=1, max_tokens=1, num_logprobs=num))
        (answer,) = drawn(server, folder, [choice([9], "length", seen)], spec)
        assert [one.id for one in answer.tokens[0].alternatives] == [9, *best]


@pytest.mark.parametrize(
    ("line", "error", "why"),
    [
        (choice([9], "abort"), EngineError, "abort"),
        (choice([EOS + 4]), EngineError, "vocabulary"),
        (choice([-1]), EngineError, "vocabulary"),
        ('{"error": {"code": 400, "message": "bad schema"}}', BadRequestError, "bad schema"),
        ('{"error": {"code": 500, "message": "engine died"}}', EngineError, "engine died"),
    ],
)
def test_what_is_no_answer_is_an_error(
    server: Scripted, folder: Path, line: str, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        drawn(server, folder, [line])


@pytest.mark.parametrize("line", ["[DONE]", "{}", '{"choices": [{"token_ids": ["x"]}]}', "{not json"])
def test_an_answer_that_makes_no_sense_fails_its_request(server: Scripted, folder: Path, line: str) -> None:
    client = attached(server, folder)
    rig = Rig(ServedEngine(client, client.kv))
    server.answers.append([choice([7]), line])
    request = rig.open(SPEC)
    rig.engine.generate(request)
    assert rig.failure(request)
    assert rig.outputs(request) == [7]
    rig.engine.close()


def test_no_more_outputs_are_demanded_than_there_is_room_for(server: Scripted, folder: Path) -> None:
    """vLLM refuses a request whose min_tokens are above its max_tokens."""
    sampling = Sampling(seed=1, max_tokens=500, min_tokens=400)
    drawn(server, folder, [choice([7], "length")], SequenceSpec((1,) * 60, (), sampling))
    assert (server.asked[0]["max_tokens"], server.asked[0]["min_tokens"]) == (4, 4)


def test_progress_is_what_is_computed_and_nothing_else(server: Scripted, folder: Path) -> None:
    told = (
        'vllm:kv_cache_usage_perc{{engine="0"}} {}\nprocess_cpu_seconds_total {}\n'
        'vllm:generation_tokens_total{{engine="0"}} {}\n'
    )
    client = attached(server, folder)

    async def progress(*numbers: float) -> object:
        server.told["/metrics"] = METRICS + told.format(*numbers)
        return await client.progress()

    async def look() -> None:
        first = await progress(0.1, 5.0, 7.0)
        assert await progress(0.1, 6.0, 7.0) == first
        assert await progress(0.2, 6.0, 7.0) != first
        assert await progress(0.1, 6.0, 8.0) != first
        await client.close()

    asyncio.run(look())


def test_a_server_that_is_not_what_is_needed_is_refused(server: Scripted, folder: Path) -> None:
    attached(server, folder, url=f"{server.url}/")
    for path, told, why in [
        ("/v1/models", '{"data": [{"id": "other"}]}', "serves other: start it with --served-model-name tiny"),
        ("/v1/models", '{"data": [{"id": "tiny", "max_model_len": 8}]}', "takes 8 tokens"),
        ("/v1/models", "[]", "does not answer as vLLM does"),
        ("/metrics", "", "does not tell the block size"),
        ("/version", "<html>", "does not answer as vLLM does"),
    ]:
        before = server.told[path]
        server.told[path] = told
        with pytest.raises(ModelLoadError, match=why):
            attached(server, folder)
        server.told[path] = before
    for url in ("http://127.0.0.1:1", "no-url", f"{server.url}/elsewhere"):
        with pytest.raises(ModelLoadError, match="no vLLM server answers"):
            attached(server, folder, url=url)


def test_a_tokenizer_that_was_saved_with_a_length_does_not_cut(server: Scripted, folder: Path) -> None:
    client = attached(server, folder)
    ids = client.tokenize("a longer text", add_special=True)
    assert b"".join(client.piece(one) for one in ids) == b"a longer text"


def test_a_folder_or_an_option_that_is_wrong_is_told(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="known options: url, python"):
        create_engine("vllm", name=NAME, path=folder, options={"uri": "http://127.0.0.1"})
    with pytest.raises(ModelLoadError, match="no model folder"):
        describe("vllm", NAME, tmp_path / "none")
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        path = tmp_path / f"without-{name}"
        path.mkdir()
        for file in folder.iterdir():
            if file.name != name:
                (path / file.name).write_bytes(file.read_bytes())
        with pytest.raises(ModelLoadError, match=r"\*.safetensors" if "model" in name else name):
            describe("vllm", NAME, path)
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / "without-model.safetensors" / name).write_text("{}")
        with pytest.raises(ModelLoadError, match=name):
            describe("vllm", NAME, tmp_path / "without-model.safetensors")
