"""Run as a script: llama.cpp's server out of the package xllamacpp, with a few of its flags."""

import argparse
import threading

import xllamacpp


def main() -> None:
    """Serve until the process is ended."""
    flags = argparse.ArgumentParser()
    flags.add_argument("--model", required=True)
    flags.add_argument("--host", default="127.0.0.1")
    flags.add_argument("--port", type=int, required=True)
    flags.add_argument("--parallel", type=int, default=1)
    flags.add_argument("--ctx-size", type=int, default=4096)
    flags.add_argument("--threads", type=int, default=1)
    flags.add_argument("--batch-size", type=int, default=2048)
    flags.add_argument("--flash-attn", choices=("on", "off", "auto"), default="auto")
    flags.add_argument("--no-repack", action="store_true")
    flags.add_argument("--cache-ram", type=int, default=0)
    given = flags.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = given.model
    params.hostnames, params.port = [given.host], given.port
    params.n_parallel, params.n_ctx = given.parallel, given.ctx_size
    params.n_batch = given.batch_size
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    kind = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}[given.flash_attn]
    params.flash_attn_type = getattr(xllamacpp.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{kind}")
    params.no_extra_bufts = given.no_repack
    params.cache_ram_mib = given.cache_ram
    params.warmup, params.ui = False, False
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
