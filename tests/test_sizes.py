"""Units stay small enough to read in one go."""

import ast
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
MAX_FUNCTION_LINES = 70
MAX_FILE_LINES = 400
MAX_MEDIAN_FILE_LINES = 150


def _sources() -> dict[str, str]:
    files = [path for folder in ("src", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in sorted(files)}


def test_functions_are_short() -> None:
    too_long = [
        f"{name}:{node.lineno} {node.name} has {length} lines"
        for name, text in _sources().items()
        for node in ast.walk(ast.parse(text, name))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert not too_long, f"functions have at most {MAX_FUNCTION_LINES} lines: {too_long}"


def test_files_are_short() -> None:
    lengths = {name: len(text.splitlines()) for name, text in _sources().items()}
    too_long = {name: length for name, length in lengths.items() if length > MAX_FILE_LINES}
    assert not too_long, f"files have at most {MAX_FILE_LINES} lines: {too_long}"


def test_the_median_file_is_shorter_still() -> None:
    lengths = {name: len(text.splitlines()) for name, text in _sources().items()}
    longest = sorted(lengths, key=lambda name: -lengths[name])[:5]
    assert median(lengths.values()) <= MAX_MEDIAN_FILE_LINES, f"split the longest files: {longest}"
