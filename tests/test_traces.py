"""Data sets are read as their READMEs say, and a missing one is named."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from godwit import traces
from godwit.errors import ConfigError
from godwit.sim.sessions import Change, Count, replay_changes, share_together

HAS_DATA = traces.data_folder().is_dir()
needs_data = pytest.mark.skipif(not HAS_DATA, reason="the data sets are not here (GODWIT_DATA)")


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a file below a data folder, which is returned."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return tmp_path

    return write


Put = Callable[[str, str], Path]


def test_gsm8k(put: Put) -> None:
    data = put(
        "gsm8k/lengths_cl100k.csv",
        "idx,prompt_tokens,answer_tokens,answer_tokens_no_calc\n0,64,55,40\n1,26,47,33\n",
    )
    assert traces.gsm8k(data).tolist() == [[64, 55], [26, 47]]


def test_sharegpt_without_empty_turns(put: Put) -> None:
    head = "conv,n_turns,prompt_tokens,output_tokens\n"
    data = put("sharegpt_lengths/first_turn_pairs.csv", f"{head}0,6,34,244\n1,1,0,71\n")
    assert traces.sharegpt(data).tolist() == [[34, 244]]


def test_a_later_turn_has_all_that_was_said_before(put: Put) -> None:
    rows = "0,0,34,244\n0,1,36,319\n1,0,17,71\n"
    data = put("sharegpt_lengths/turn_lengths.csv", f"conv,turn,user_tokens,assistant_tokens\n{rows}")
    assert traces.sharegpt_turns(data).tolist() == [[34, 244], [34 + 244 + 36, 319], [17, 71]]


def test_azure(put: Put) -> None:
    data = put(
        "azure_llm_2023/AzureLLMInferenceTrace_code.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.4799600,110,27\n",
    )
    trace = traces.azure(data, "code")
    assert trace.times_s == pytest.approx([0, 0.5])
    assert trace.tokens.tolist() == [[4808, 10], [110, 27]]


def test_mooncake(put: Put) -> None:
    line = '{"timestamp": %d, "input_length": %d, "output_length": 500, "hash_ids": [0]}\n'
    data = put("mooncake/conversation_trace.jsonl", line % (0, 6758) + line % (3000, 7322))
    trace = traces.mooncake(data)
    assert list(trace.times_s) == [0, 3]
    assert trace.tokens.tolist() == [[6758, 500], [7322, 500]]


def test_parcae(put: Put) -> None:
    data = put("spot_parcae/p3trace.csv", "0,add,node1\n60000,remove,node1\n")
    assert traces.parcae(data) == (Change(0, True, "node1"), Change(60, False, "node1"))


def test_parcae_by_the_minute(put: Put) -> None:
    data = put(
        "spot_parcae/gpt-1.5b_trace_hl_15_25.txt",
        '[0, "add", {"nodes": ["a", "b"], "duration": 60000}]\n'
        '[60000, "no-op", {"nodes": [], "duration": 60000}]\n'
        '[120000, "remove", {"nodes": ["a"], "duration": 60000}]\n',
    )
    changes = traces.parcae_minutes(data, "hl_15_25")
    assert changes == (Change(0, True, "a"), Change(0, True, "b"), Change(120, False, "a"))


def test_bamboo_in_hours_or_seconds(put: Put) -> None:
    folder = "spot_bamboo/aws-spot-instances"
    data = put(f"{folder}-p2-xlarge-2020-11-20-to-2020-11-23.csv", "0.0,0\n0.5,0\n0.5,9\n")
    assert traces.bamboo(data, "p2") == (Count(0, 0), Count(1800, 0), Count(1800, 9))
    put(f"{folder}-g4dn-xlarge-us-east-1d-2020-11-23-1730-to-2020-11-24-1530.csv", "0,0\n25435,2\n")
    assert traces.bamboo(data, "g4dn-1d") == (Count(0, 0), Count(25_435, 2))


def test_a_missing_data_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mooncake/conversation_trace\.jsonl.*GODWIT_DATA"):
        traces.mooncake(tmp_path)


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "prompt_tokens,answer_tokens\n64,55\n26\n"])
def test_a_file_with_something_else_in_it_is_named(put: Put, text: str) -> None:
    data = put("gsm8k/lengths_cl100k.csv", text)
    with pytest.raises(ConfigError, match=r"lengths_cl100k\.csv is not the data set"):
        traces.gsm8k(data)


def test_the_folder_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GODWIT_DATA", str(tmp_path))
    assert traces.data_folder() == tmp_path
    monkeypatch.delenv("GODWIT_DATA")
    assert traces.data_folder().parts[-2:] == ("shared", "data")


@needs_data
@pytest.mark.parametrize(
    ("name", "count", "prompt", "output"),
    [("azure-conv", 19_366, 1155, 211), ("azure-code", 8_819, 2048, 28), ("mooncake", 12_031, 12_035, 343)],
)
def test_real_traces_have_the_published_statistics(name: str, count: int, prompt: int, output: int) -> None:
    trace = traces.TRACES[name](traces.data_folder())
    assert len(trace.times_s) == count
    assert (np.diff(trace.times_s) >= 0).all()
    assert trace.tokens.mean(axis=0) == pytest.approx([prompt, output], abs=1)


@needs_data
@pytest.mark.parametrize(
    ("name", "prompt", "output"), [("gsm8k", 59, 103), ("sharegpt", 190, 302), ("sharegpt-turns", 654, 280)]
)
def test_real_lengths(name: str, prompt: int, output: int) -> None:
    tokens = traces.LENGTHS[name](traces.data_folder())
    assert tokens.min() > 0
    assert tokens.mean(axis=0) == pytest.approx([prompt, output], rel=0.1)


@needs_data
@pytest.mark.parametrize("name", ["parcae", "parcae-hh", "parcae-hl", "parcae-lh", "parcae-ll"])
def test_real_spot_traces_can_be_replayed(name: str) -> None:
    changes = [one for one in traces.SPOT[name](traces.data_folder()) if isinstance(one, Change)]
    stays = replay_changes(changes)
    assert sum(len(own) for own in stays.values()) == sum(change.is_added for change in changes)


@needs_data
def test_losses_of_real_spot_nodes_go_together() -> None:
    changes = [one for one in traces.parcae(traces.data_folder()) if isinstance(one, Change)]
    stays = replay_changes(changes)
    assert share_together(stay for own in stays.values() for stay in own) > 0.37
