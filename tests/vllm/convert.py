"""Makes a Hugging Face folder, as vLLM reads it, from a GGUF. Runs under vLLM's interpreter, not ours.

python tests/vllm/convert.py GGUF_OR_PACKAGE OUT_DIR [--dtype float32|bfloat16]
"""

import argparse
import importlib.util
import sys
from pathlib import Path

import torch
from gguf import GGUFReader
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoModelForCausalLM, AutoTokenizer


def find_gguf(name: str) -> Path:
    """The file that `name` says: a path, or an installed package that has exactly one GGUF in its folder."""
    if Path(name).is_file():
        return Path(name)
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"{name} is neither a file nor an installed package: give the path of a GGUF.")
    files = [f for folder in spec.submodule_search_locations for f in sorted(Path(folder).glob("*.gguf"))]
    if len(files) != 1:
        sys.exit(f"Package {name} has {len(files)} GGUF files where one is needed: give the path of a GGUF.")
    return files[0]


def _pre_tokenizer(gguf: Path) -> str | None:
    field = GGUFReader(gguf).get_field("tokenizer.ggml.pre")
    return str(field.contents()) if field else None


def convert(gguf: Path, out: Path, dtype: torch.dtype) -> None:
    """Writes config, weights in `dtype` (dequantized), tokenizer and chat template to `out`."""
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    if _pre_tokenizer(gguf) == "smollm":  # transformers forgets that it splits digits first
        split = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)])
        tokenizer.backend_tokenizer.pre_tokenizer = split
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=dtype)
    # The weights are plain by now. With this entry left in, vLLM would take them for a GGUF's.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    plain = type(model)(model.config)  # save_pretrained refuses a model that remembers its quantizer
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    plain.to(dtype).save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a Hugging Face folder from a GGUF.")
    parser.add_argument("gguf", metavar="GGUF_OR_PACKAGE")
    parser.add_argument("out", metavar="OUT_DIR", type=Path)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    options = parser.parse_args()
    convert(find_gguf(options.gguf), options.out, getattr(torch, options.dtype))


if __name__ == "__main__":
    main()
