"""godwit.toml as frozen settings. Nothing here reads a file or the environment: callers pass both in."""

import ipaddress
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from godwit.errors import ConfigError

BUILT_IN_MODELS = ("smollm2-135m", "gemma3-270m")
DEFAULT_MODEL = "smollm2-135m"
SETTABLE = ("head", "moves", "hazard", "worker", "security")
URL_SCHEMES = ("https", "http", "file", "hf")

Port = Annotated[int, Meta(ge=0, le=65535)]
# More does not travel.
MAX_INT = 2**63 - 1
Count = Annotated[int, Meta(ge=1, le=MAX_INT)]
Whole = Annotated[int, Meta(ge=0, le=MAX_INT)]
Seconds = Annotated[float, Meta(gt=0)]
Bandwidth = Annotated[float, Meta(ge=1000)]
Text = Annotated[str, Meta(min_length=1)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$", max_length=100)]
Option = str | int | float | bool
EarlyRule = Literal["window", "classic", "off"]
MoveMethod = Literal["auto", "tokens", "kv", "split"]


class _Section(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all sections: an unknown key is an error."""


class HeadSettings(_Section, frozen=True):
    """Where the head listens and how much it takes; `heartbeat_s` and `dead_after_s` hold for its links.

    An instance that has been idle for `keep_alive_s` is unloaded, None: only when its memory is needed. For a
    request that has found no place for `patience_s`, instances in its way take nothing new.
    `store` is the SQLite file with what must survive a restart (None: nothing does); of the decisions the
    latest `max_events` are kept.
    """

    host: Text = "127.0.0.1"
    port: Port = 8080
    max_body_bytes: Count = 8 * 1024 * 1024
    max_prompt_tokens: Count = 131_072
    max_output_tokens: Count = 131_072
    max_queued: Count = 1024
    max_running: Count = 1024
    max_failovers: Count = 5
    max_header_bytes: Count = 16 * 1024
    max_unread_bytes: Count = 1024 * 1024
    body_timeout_s: Seconds = 30.0
    idle_timeout_s: Seconds = 75.0
    placement_timeout_s: Seconds = 60.0
    progress_timeout_s: Seconds = 300.0
    prepare_timeout_s: Seconds = 120.0
    heartbeat_s: Seconds = 1.0
    dead_after_s: Seconds = 5.0
    policy: str = "live_migration"
    keep_alive_s: Seconds | None = None
    patience_s: Seconds = 5.0
    store: Text | None = None
    max_events: Count = 10_000
    tls_cert: Text | None = None
    tls_key: Text | None = None


class MoveSettings(_Section, frozen=True):
    """How a request moves, when its rounds end (`godwit.protocol.messages.MoveLimits`), a drain's limits.

    `profile` is a file of measured constants (`godwit.profile`) from which "auto" chooses.
    """

    method: MoveMethod = "auto"
    profile: Text | None = None

    max_rounds: Count = 8
    pause_budget_steps: Annotated[float, Meta(ge=1)] = 2.0
    shadow_tokens: Whole = 4
    max_shadow_rounds: Count = 64
    patience_rounds: Count = 6
    pace: Annotated[float, Meta(ge=1)] = 1.3
    timeout_s: Seconds = 60.0
    max_moves_per_worker: Count = 2
    max_tries: Count = 3


class HazardSettings(_Section, frozen=True):
    """With `head.policy` "hazard": how likely workers are to leave, and when requests leave them first.

    `family` is one of `godwit.costs.families`, `early` one of the two rules of `godwit.scheduling.early`, or
    "off". A loss costs `stall_s` beside the recompute. A request moves early if that saves more than
    `hysteresis_s`, at most `max_hops` times, and not for fewer than `min_remaining_tokens`; it is looked at
    every `check_s`.
    """

    family: str = "hierarchical"
    early: EarlyRule = "window"
    stall_s: Annotated[float, Meta(ge=0)] = 5.0
    hysteresis_s: Annotated[float, Meta(ge=0)] = 5.0
    max_hops: Whole = 3
    min_remaining_tokens: Count = 32
    check_s: Seconds = 1.0


class WorkerSettings(_Section, frozen=True):
    """What one worker offers; `slots` is per model, `device_bytes` None means that the worker measures it.

    An engine that shows no progress for `stall_after_s` while it is in a step counts as failed. The
    certificate is for the peer port. With an `emulated_bandwidth_bytes_per_s` it sends no faster than that to
    other workers.

    Checkpoints: `dram_bytes` of them are kept mapped and locked in memory (None: a quarter of the machine's),
    `ssd_bytes` of fetched files in a folder by the worker's name in `checkpoint_dir` (None: in the cache).
    Loads out of a tier with an `emulated_…_bytes_per_s` are no faster than that.
    """

    name: Name | None = None
    slots: Annotated[int, Meta(ge=1, le=256)] = 4
    context_tokens: Annotated[int, Meta(ge=16, le=MAX_INT)] = 4096
    threads: Count = 1
    device_bytes: Count | None = None
    prefill_chunk: Annotated[int, Meta(ge=1, le=4096)] = 64
    stall_after_s: Seconds = 30.0
    dead_after_s: Seconds = 5.0
    peer_host: Text = "127.0.0.1"
    peer_port: Port = 0
    emulated_bandwidth_bytes_per_s: Bandwidth | None = None
    checkpoint_dir: Text | None = None
    dram_bytes: Whole | None = None
    ssd_bytes: Whole = 100_000_000_000
    emulated_dram_bytes_per_s: Bandwidth | None = None
    emulated_ssd_bytes_per_s: Bandwidth | None = None
    emulated_remote_bytes_per_s: Bandwidth | None = None
    tls_cert: Text | None = None
    tls_key: Text | None = None


class SecuritySettings(_Section, frozen=True):
    """Who gets in: `api_keys` for clients, `join_token` for workers, `admin_key` for the admin API."""

    api_keys: tuple[Text, ...] = ()
    join_token: Text | None = None
    admin_key: Text | None = None
    insecure: bool = False

    def __repr__(self) -> str:
        # Secrets must not reach a log, not even through a traceback that prints its arguments.
        return f"SecuritySettings({len(self.api_keys)} API keys, insecure={self.insecure})"


class ModelSettings(_Section, frozen=True):
    """One model; without `path` and `url` its name must be a built-in one. `options` are the engine's own.

    `path` is a file on the worker's machine, used where it is. `url` (http, https, file; hf://ORG/REPO/FILE
    with `huggingface_hub`) is fetched into the worker's checkpoint folder to be described, and must have
    the SHA-256 that `sha256` says. `preload`: how near a worker brings it when it starts, if it fits.
    `origin` names the weights that the checkpoint was made of: models of one name and origin whose token ids
    mean the same continue each other's requests, whatever their formats and engines.
    """

    name: Name
    path: Text | None = None
    url: Text | None = None
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | None = None
    preload: Literal["device", "dram", "none"] = "device"
    engine: Literal["llamacpp", "llama-server", "vllm", "fake"] = "llamacpp"
    chat_template: Text | None = None
    origin: Text | None = None
    options: dict[str, Option] = {}


class Settings(_Section, frozen=True):
    """All of godwit.toml."""

    head: HeadSettings = HeadSettings()
    moves: MoveSettings = MoveSettings()
    hazard: HazardSettings = HazardSettings()
    worker: WorkerSettings = WorkerSettings()
    security: SecuritySettings = SecuritySettings()
    models: tuple[ModelSettings, ...] = (ModelSettings(name=DEFAULT_MODEL),)


_SECTIONS: Mapping[str, type[Struct]] = {
    "head": HeadSettings,
    "moves": MoveSettings,
    "hazard": HazardSettings,
    "worker": WorkerSettings,
    "security": SecuritySettings,
    "models": ModelSettings,
}


def parse_settings(text: str, environ: Mapping[str, str], assigned: Sequence[str] = ()) -> Settings:
    """Settings from a TOML text, with secrets from GODWIT_API_KEYS, GODWIT_JOIN_TOKEN and GODWIT_ADMIN_KEY.

    Each of `assigned`, SECTION.KEY=VALUE, wins over the text, and the environment over both. ConfigError
    names the key and what it may be.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not valid TOML: {error}") from error
    for assignment in assigned:
        _assign(raw, assignment)
    settings = _convert(raw)
    secrets = _secrets(settings.security, environ)
    return check_settings(replace(settings, security=secrets))


def _assign(raw: dict[str, Any], assignment: str) -> None:
    """Put one SECTION.KEY=VALUE in its place; a value that is no TOML is text."""
    path, is_there, value = assignment.partition("=")
    section, _, key = path.strip().partition(".")
    if not is_there or section not in SETTABLE or not key:
        raise ConfigError(
            f"--set: SECTION.KEY=VALUE, as in head.patience_s=2, not {assignment!r}; sections: "
            f"{', '.join(SETTABLE)}"
        )
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    values = raw.setdefault(section, {})
    if not isinstance(values, dict):
        raise ConfigError(f"{section}: must be a section, [{section}], with keys of its own")
    values[key] = parsed


def check_settings(settings: Settings) -> Settings:
    """The same settings once they are right: each value by itself, and those that concern each other."""
    settings = _convert(msgspec.to_builtins(settings))
    head = settings.head
    for key, section in (("head", head), ("worker", settings.worker)):
        if (section.tls_cert is None) != (section.tls_key is None):
            raise ConfigError(f"{key}.tls_cert, {key}.tls_key: set both, or neither")
    if head.dead_after_s < 2 * head.heartbeat_s:
        raise ConfigError(
            f"head.dead_after_s: {head.dead_after_s} is less than twice head.heartbeat_s "
            f"({head.heartbeat_s}), so that one late heartbeat would end a healthy link"
        )
    _check_secrets(settings.security)
    if not settings.models:
        raise ConfigError("models: name at least one model, or leave the section out")
    names = [model.name for model in settings.models]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"models.name: {name!r} stands there twice; each model needs its own name")
    for model in settings.models:
        _check_source(model)
        has_file = model.path is not None or model.url is not None
        if not has_file and model.engine != "fake" and model.name not in BUILT_IN_MODELS:
            raise ConfigError(
                f"models.path: missing for {model.name!r}; give the GGUF file's path (vllm: the folder's), "
                f"or use a built-in model: {', '.join(BUILT_IN_MODELS)}"
            )
    return settings


def _check_secrets(security: SecuritySettings) -> None:
    """Refuse what no HTTP header can carry: it would be wrong wherever it is shown."""
    keys = {
        "api_keys": security.api_keys,
        "join_token": (security.join_token,),
        "admin_key": (security.admin_key,),
    }
    for key, secrets in keys.items():
        if any(
            secret is not None and (not secret.isprintable() or secret != secret.strip())
            for secret in secrets
        ):
            raise ConfigError(
                f"security.{key}: has a line break or a space at an end, or a character that no header takes"
            )


def _check_source(model: ModelSettings) -> None:
    if model.path is not None and model.url is not None:
        raise ConfigError(f"models.path, models.url: set one of them for {model.name!r}, not both")
    if model.url is None:
        if model.sha256 is not None:
            raise ConfigError(f"models.sha256: is for what is fetched by url, and {model.name!r} has none")
        return
    scheme = model.url.partition("://")[0]
    if scheme not in URL_SCHEMES:
        raise ConfigError(f"models.url: {model.url!r} must begin with {', '.join(URL_SCHEMES)}")
    if model.sha256 is None and scheme != "hf":
        raise ConfigError(f"models.sha256: missing for {model.name!r}; what is fetched is checked against it")


def check_listen(key: str, host: str, security: SecuritySettings, *, serves_clients: bool) -> None:
    """Refuse an address that others can reach while anybody could use it; `key` is the setting to name.

    `serves_clients` says that API keys are needed too, not only a join token.
    """
    if security.insecure or is_loopback(host):
        return
    missing: list[str] = []
    if serves_clients and not security.api_keys:
        missing.append('security.api_keys = ["…"] (or the environment variable GODWIT_API_KEYS)')
    if security.join_token is None:
        missing.append('security.join_token = "…" (or GODWIT_JOIN_TOKEN)')
    if missing:
        raise ConfigError(
            f"{key}: {host} can be reached from other machines; set {' and '.join(missing)}, "
            "or allow everybody in with --insecure, or listen on 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`; a name other than localhost counts as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _convert(raw: dict[str, Any]) -> Settings:
    try:
        return msgspec.convert(raw, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error))) from error


def _explain(message: str) -> str:
    """msgspec's message with the key in front, and what exists instead of an unknown key or value."""
    what, _, path = message.partition(" - at `")
    key = path.rstrip("`").removeprefix("$").removeprefix(".")
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", what):
        section = _SECTIONS.get(key.split("[")[0], Settings)
        allowed = ", ".join(section.__struct_fields__)
        return f"{f'{key}.' if key else ''}{unknown[1]}: no such setting; allowed here: {allowed}"
    if what.startswith("Invalid enum value"):
        section, field = _SECTIONS[key.split("[")[0].split(".")[0]], key.rpartition(".")[2]
        what += f"; allowed: {', '.join(get_args(get_type_hints(section)[field]))}"
    return f"{key or 'godwit.toml'}: {what[:1].lower()}{what[1:]}"


def _secrets(security: SecuritySettings, environ: Mapping[str, str]) -> SecuritySettings:
    keys = tuple(key.strip() for key in environ.get("GODWIT_API_KEYS", "").split(",") if key.strip())
    # Files of secrets often end with a line break, which is no part of them.
    return replace(
        security,
        api_keys=keys or security.api_keys,
        join_token=environ.get("GODWIT_JOIN_TOKEN", "").strip() or security.join_token,
        admin_key=environ.get("GODWIT_ADMIN_KEY", "").strip() or security.admin_key,
    )
