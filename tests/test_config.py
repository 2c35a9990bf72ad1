"""godwit.toml: defaults, and an error for everything that is wrong in it."""

import json
from pathlib import Path

import pytest
from msgspec.structs import fields, replace

from godwit.config import (
    DEFAULT_MODEL,
    SecuritySettings,
    Settings,
    check_listen,
    check_settings,
    is_loopback,
    parse_settings,
)
from godwit.errors import ConfigError


def test_an_empty_file_gives_the_defaults_and_the_built_in_model() -> None:
    settings = parse_settings("", {})
    assert settings == Settings()
    assert [model.name for model in settings.models] == [DEFAULT_MODEL]
    assert is_loopback(settings.head.host)


def test_every_section_is_read() -> None:
    settings = parse_settings(
        """
        [head]
        port = 9000
        [moves]
        max_rounds = 3
        [hazard]
        early = "classic"
        [worker]
        name = "gpu-1"
        slots = 8
        [security]
        api_keys = ["k1"]
        [[models]]
        name = "mine"
        path = "/models/mine.gguf"
        [models.options]
        gpu_layers = 99
        """,
        {},
    )
    assert (settings.head.port, settings.moves.max_rounds) == (9000, 3)
    assert (settings.hazard.early, settings.hazard.family) == ("classic", "hierarchical")
    assert (settings.worker.name, settings.worker.slots) == ("gpu-1", 8)
    assert settings.security.api_keys == ("k1",)
    assert settings.models[0].options == {"gpu_layers": 99}


def test_secrets_come_from_the_environment_first() -> None:
    environ = {"GODWIT_API_KEYS": "a, b,", "GODWIT_JOIN_TOKEN": "t", "GODWIT_ADMIN_KEY": "m"}
    security = parse_settings('[security]\napi_keys = ["old"]', environ).security
    assert (security.api_keys, security.join_token, security.admin_key) == (("a", "b"), "t", "m")


def test_a_file_s_last_line_break_is_no_part_of_a_secret() -> None:
    environ = {"GODWIT_API_KEYS": "a\n", "GODWIT_JOIN_TOKEN": "t\n", "GODWIT_ADMIN_KEY": " \n"}
    security = parse_settings("", environ).security
    assert (security.api_keys, security.join_token, security.admin_key) == (("a",), "t", None)


def test_secrets_do_not_show_in_what_is_printed() -> None:
    security = SecuritySettings(api_keys=("hidden",), join_token="hidden", admin_key="hidden")
    assert "hidden" not in repr(security)
    assert "hidden" not in repr(Settings(security=security))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[head]\nport = 70000", r"head\.port: expected `int` <= 65535"),
        ("[head]\nprot = 1", r"head\.prot: no such setting; allowed here: host, port,"),
        ("[moves]\nmethod = 'swim'", r"moves\.method: .*allowed: auto, tokens, kv, split"),
        ("[haed]", "haed: no such setting; allowed here: head, moves, hazard, worker, security, models"),
        ("[worker]\nslots = 0", r"worker\.slots: expected `int` >= 1"),
        ("[worker]\nslots = 'x'", r"worker\.slots: expected `int`, got `str`"),
        ("[worker]\nname = 'a b'", r"worker\.name"),
        ("[[models]]\npath = 'x'", r"models\[0\]: object missing required field `name`"),
        (
            "[[models]]\nname = 'x'\nengine = 'tgi'",
            r"models\[0\]\.engine: .*allowed: llamacpp, llama-server, vllm, fake",
        ),
        ("[[models]]\nname = 'x'", r"models\.path: missing for 'x'.*smollm2-135m"),
        ("[[models]]\nname='x'\nengine='fake'\n[[models]]\nname='x'\nengine='fake'", "twice"),
        ("models = []", "models: name at least one"),
        ("[head]\ntls_cert = 'x'", r"head\.tls_cert, head\.tls_key: set both"),
        ("[head]\nheartbeat_s = 4", r"head\.dead_after_s"),
        ("[head", "not valid TOML"),
        ("[security]\njoin_token = 'a '", r"security\.join_token: .*space at an end"),
        ('[security]\nadmin_key = "a\\nb"', r"security\.admin_key: has a line break"),
        ('[security]\napi_keys = ["a", "b\\n"]', r"security\.api_keys: has a line break"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_settings(text, {})


def test_settings_that_were_put_together_in_code_are_checked_too() -> None:
    settings = Settings()
    wrong = replace(settings, head=replace(settings.head, port=-1))
    with pytest.raises(ConfigError, match=r"head\.port"):
        check_settings(wrong)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]"])
def test_loopback_needs_no_secrets(host: str) -> None:
    check_listen("head.host", host, SecuritySettings(), serves_clients=True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_any_other_address_needs_keys_and_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match=r"head\.host.*api_keys.*join_token.*--insecure"):
        check_listen("head.host", host, SecuritySettings(), serves_clients=True)


def test_only_what_is_missing_is_asked_for() -> None:
    token_only = SecuritySettings(join_token="t")
    check_listen("worker.peer_host", "10.0.0.1", token_only, serves_clients=False)
    with pytest.raises(ConfigError, match="GODWIT_API_KEYS") as caught:
        check_listen("head.host", "10.0.0.1", token_only, serves_clients=True)
    assert "GODWIT_JOIN_TOKEN" not in caught.value.message
    both = replace(token_only, api_keys=("k",))
    check_listen("head.host", "10.0.0.1", both, serves_clients=True)


def test_insecure_allows_everything() -> None:
    check_listen("head.host", "0.0.0.0", SecuritySettings(insecure=True), serves_clients=True)


def test_the_docs_name_every_key_with_its_default() -> None:
    docs = (Path(__file__).parent.parent / "docs" / "configuration.md").read_text()
    settings = Settings()
    for section in ("head", "moves", "hazard", "worker", "security"):
        part = docs.split(f"## [{section}]")[1].split("\n## ")[0]
        for field in fields(getattr(settings, section)):
            names = ((row.split("|")[1], row) for row in part.splitlines() if row.startswith("| `"))
            line = next((row for name, row in names if f"`{field.name}`" in name), None)
            assert line is not None, f"docs/configuration.md lacks {section}.{field.name}"
            if isinstance(field.default, int | float | str):
                assert f"`{json.dumps(field.default)}`" in line, line


def test_any_setting_may_be_assigned_and_wins_over_the_text() -> None:
    assigned = ["head.patience_s=2", "head.policy=locality", "worker.dram_bytes=1_000", "moves.method='kv'"]
    settings = parse_settings("[head]\npatience_s = 9\nport = 1", {}, assigned)
    assert (settings.head.patience_s, settings.head.policy, settings.head.port) == (2.0, "locality", 1)
    assert (settings.worker.dram_bytes, settings.moves.method) == (1000, "kv")


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("patience_s=2", "sections: head, moves"),
        ("head.patience_s", "SECTION.KEY=VALUE"),
        ("models.name=x", "SECTION.KEY=VALUE"),
        ("head.patience=2", "head.patience: no such setting; allowed here: .*patience_s"),
        ("head.patience_s=0", "head.patience_s: expected `float` > 0"),
        ("worker.device_bytes=99999999999999999999", "worker.device_bytes: expected `int` <= "),
        ("worker.slots=many", "worker.slots: expected `int`, got `str`"),
        ("hazard.early=soon", "hazard.early: .*allowed: window, classic, off"),
        ("hazard.hysteresis_s=-1", "hazard.hysteresis_s: expected `float` >= 0"),
        ("hazard.min_remaining_tokens=0", "hazard.min_remaining_tokens: expected `int` >= 1"),
    ],
)
def test_a_wrong_assignment_says_what_is_right(assignment: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_settings("", {}, [assignment])


def test_what_should_be_a_section_is_named_too() -> None:
    with pytest.raises(ConfigError, match=r"head: must be a section, \[head\]"):
        parse_settings("head = 5", {}, ["head.port=80"])
