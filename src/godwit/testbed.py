"""Two workers of this machine with a chosen engine, as `bench` and `calibrate` start them."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from godwit.config import ModelSettings, Option
from godwit.errors import ConfigError
from godwit.local import Site

NAMES = ("w1", "w2")
VLLM_PYTHON = Path(".venv-vllm/bin/python")
# A vLLM that serves on one CPU core, exactly: see docs/engines.md.
_FLAGS = "--enforce-eager --block-size 32"
_ENV = "VLLM_CPU_KVCACHE_SPACE=1 VLLM_HOST_IP=127.0.0.1 UCX_NET_DEVICES=lo UCX_TLS=tcp,self"
STALL_S = 120.0


class Testbed(Struct, frozen=True):
    """The model that both serve, and what each worker has of its own."""

    model: ModelSettings
    sites: Mapping[str, Site]


def make_testbed(engine: str, name: str, python: Path = VLLM_PYTHON) -> Testbed:
    """Two workers that serve the built-in model `name`, vLLM's (of the interpreter `python`) on a core each.

    ConfigError where the interpreter is not there.
    """
    if engine != "vllm":
        return Testbed(ModelSettings(name=name), {})
    if not python.is_file():
        raise ConfigError(
            f"there is no {python}: `make vllm` installs vLLM for CPUs there, or name the interpreter "
            "that has vLLM with --vllm-python"
        )
    model = ModelSettings(name=name, engine="vllm", options=_options(python, 0))
    sites = {
        worker: Site(
            worker={"stall_after_s": STALL_S},
            models=(replace(model, options=_options(python, core)),),
        )
        for core, worker in enumerate(NAMES)
    }
    return Testbed(model, sites)


def _options(python: Path, core: int) -> dict[str, Option]:
    return {
        "python": str(python.absolute()),
        "dtype": "float32",
        "nixl": True,
        "share_prefixes": False,
        "flags": _FLAGS,
        "env": f"{_ENV} VLLM_CPU_OMP_THREADS_BIND={core}",
        "cores": str(core),
    }
