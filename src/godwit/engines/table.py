"""What each engine carries across a move, as a Markdown table, for docs/engines.md.

`python -m godwit.engines.table` prints it; a test checks that the page has it as it is.
"""

from collections.abc import Mapping

from msgspec.structs import fields

from godwit.engines import ENGINES
from godwit.types import Carries

COLUMNS: Mapping[str, str] = {
    "seed": "a seed (above temperature 0)",
    "penalties": "presence and frequency penalties",
    "grammar": "a grammar, a JSON schema",
    "kv": "KV",
}
ALWAYS = "prompt, output so far, greedy draws, logit bias, limits, stop strings, logprobs"


def render() -> str:
    """One row an engine; a new field of `Carries` needs a column here."""
    names = [field.name for field in fields(Carries)]
    lines = [
        f"| engine | {ALWAYS} | {' | '.join(COLUMNS[name] for name in names)} |",
        f"|---|{'---|' * (len(names) + 1)}",
    ]
    for engine, kind in sorted(ENGINES.items()):
        marks = ["yes" if getattr(kind.carries, name) else "**no**" for name in names]
        lines.append(f"| `{engine}` | yes | {' | '.join(marks)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(render())
