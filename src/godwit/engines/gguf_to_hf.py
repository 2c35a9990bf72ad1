"""Makes a Hugging Face folder, as vLLM reads it, from a GGUF. Runs under vLLM's interpreter, not ours.

python gguf_to_hf.py GGUF OUT_DIR [--dtype float32|bfloat16]
"""

import argparse
from pathlib import Path

import torch
from gguf import GGUFReader
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoModelForCausalLM, AutoTokenizer


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
    """Convert what the arguments say."""
    parser = argparse.ArgumentParser(description="Make a Hugging Face folder from a GGUF.")
    parser.add_argument("gguf", metavar="GGUF", type=Path)
    parser.add_argument("out", metavar="OUT_DIR", type=Path)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    options = parser.parse_args()
    convert(options.gguf, options.out, getattr(torch, options.dtype))


if __name__ == "__main__":
    main()
