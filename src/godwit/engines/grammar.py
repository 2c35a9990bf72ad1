"""GBNF grammars and JSON schemas, through llama.cpp's matcher.

Accepting a token that the matcher does not allow throws in C++ and ends the process: ask `allows` first.
"""

import ctypes
import json
from typing import Any

from godwit.engines.capi import lib
from godwit.engines.gguf import GgufFile
from godwit.errors import BadRequestError
from godwit.types import Sampling, TokenId

_MAX_DEPTH = 200  # the C++ parser recurses once a bracket

# What llama-cpp-python's converter raises on schemas that it does not understand.
_CONVERTER_ERRORS = (
    ValueError, TypeError, LookupError, AttributeError, AssertionError, RuntimeError, RecursionError,
    MemoryError,
)  # fmt: skip


class Grammar:
    """A matcher at some point of a text; special tokens count as their text: mask them before."""

    def __init__(self, file: GgufFile, gbnf: str, param: str) -> None:
        self._api = lib()
        self.sampler = self._api.llama_sampler_init_grammar(file.vocab, gbnf.encode(), b"root")
        if not self.sampler:
            raise BadRequestError(f"{param} is not a valid grammar with a rule named root", param=param)
        self._one = (self._api.llama_token_data * 1)()
        self._array = self._api.llama_token_data_array()

    def allows(self, token: TokenId) -> bool:
        """Whether `token` may come next; an end-of-sequence token may where the grammar may end."""
        self._one[0].id, self._one[0].logit = token, 0.0
        self._array.data = ctypes.cast(self._one, self._api.llama_token_data_p)
        self._array.size, self._array.selected, self._array.sorted = 1, -1, False
        self._api.llama_sampler_apply(self.sampler, ctypes.byref(self._array))
        return bool(self._one[0].logit == 0.0)

    def accept(self, token: TokenId) -> None:
        """Advance over a token that is allowed."""
        self._api.llama_sampler_accept(self.sampler, token)

    def close(self) -> None:
        self._api.llama_sampler_free(self.sampler)


def compile_grammar(file: GgufFile, sampling: Sampling) -> Grammar | None:
    """The request's matcher at its start, None where it has none; BadRequestError where it cannot be read."""
    if sampling.grammar is not None and sampling.json_schema is not None:
        raise BadRequestError("give either a grammar or a JSON schema, not both", param="grammar")
    if sampling.grammar is not None:
        return _compile(file, sampling.grammar, "grammar")
    if sampling.json_schema is not None:
        return _compile(file, _schema_to_gbnf(sampling.json_schema), "json_schema")
    return None


def _compile(file: GgufFile, gbnf: str, param: str) -> Grammar:
    if not gbnf.strip() or "\0" in gbnf or _depth(gbnf) > _MAX_DEPTH:
        raise BadRequestError(f"{param} is empty, nested too deeply, or has a zero byte", param=param)
    return Grammar(file, gbnf, param)


def _depth(gbnf: str) -> int:
    """The deepest nesting of brackets, quotes ignored: an upper bound is all that is needed."""
    depth = deepest = 0
    for char in gbnf:
        depth += (char == "(") - (char == ")")
        deepest = max(deepest, depth)
    return deepest


def _inline_root(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with a reference at its root resolved: the converter looks no further than such a one."""
    if not isinstance(schema, dict):
        raise ValueError("a schema is a JSON object")
    root = dict(schema)
    for _ in range(_MAX_DEPTH):
        path = root.pop("$ref", None)
        if path is None:
            return root
        target = schema
        for key in path.removeprefix("#/").split("/"):
            target = target[key]
        root = {**root, **target}
    raise ValueError("the schema refers to itself")


def _schema_to_gbnf(schema: str) -> str:
    from llama_cpp.llama_grammar import json_schema_to_gbnf  # heavy, and only where it is used

    try:
        # An empty schema means "any JSON object" here, while to the converter it is "any JSON value".
        wanted = _inline_root(json.loads(schema)) or {"type": "object"}
        gbnf: str = json_schema_to_gbnf(json.dumps(wanted))
    except _CONVERTER_ERRORS as error:
        raise BadRequestError(
            f"json_schema cannot be followed: {str(error) or 'it is too large'}", param="json_schema"
        ) from error
    return gbnf
