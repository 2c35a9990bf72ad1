"""Messages in words."""

from collections.abc import Callable
from typing import Any

from godwit.protocol import messages as m
from godwit.protocol import model_messages as mm
from godwit.protocol.message import Message
from godwit.protocol.messages import TokenEvent


def span(first: int, num: int) -> str:
    """Indices in words."""
    return f"{first}..{first + num - 1}" if num else "nothing new"


def _event(event: TokenEvent) -> str:
    finish = "" if event.finish is None else f", {event.finish}"
    return f"{event.request} epoch {event.epoch}: {span(event.first_index, len(event.ids))}{finish}"


def _model(message: mm.ModelChanged) -> str:
    state = "loaded" if message.model.is_loaded else "not loaded"
    return f"{message.model.name} is {state}" + (f": {message.error}" if message.error else "")


_WORDS: dict[type[Message], Callable[[Any], str]] = {
    m.Accepted: lambda x: f"{x.request} epoch {x.epoch}",
    m.Rejected: lambda x: f"{x.request} epoch {x.epoch}: {x.message}",
    m.Tokens: lambda x: "; ".join(_event(event) for event in x.events),
    m.RequestFailed: lambda x: f"{x.request} epoch {x.epoch}: {x.message}",
    m.Prepared: lambda x: f"{x.move}",
    m.Refused: lambda x: f"{x.move}: {x.reason}",
    m.MoveFailed: lambda x: f"{x.move}: {x.reason}",
    m.Migrated: lambda x: f"{x.move} at {x.num_output}, {x.gap_tokens} behind",
    m.InDoubt: lambda x: f"{x.move}: {x.reason}",
    mm.ModelChanged: _model,
    mm.Load: lambda x: f"{x.model}",
    mm.Unload: lambda x: f"{x.model}",
    m.Submit: lambda x: f"{x.request} epoch {x.epoch} after {len(x.output_ids)} tokens",
    m.Stop: lambda x: f"{x.request} up to epoch {x.epoch}",
    m.Prepare: lambda x: f"{x.move} for {x.request} from {x.source}, epoch {x.epoch}",
    m.Migrate: lambda x: f"{x.move} of {x.request} to {x.destination}",
    m.AbortMove: lambda x: f"{x.move}",
    m.Keep: lambda x: f"{x.move}",
    m.Release: lambda x: f"{x.move}",
    m.Resume: lambda x: f"{x.move} with {len(x.output)} tokens",
    m.Append: lambda x: f"{x.move} {span(x.first_index, len(x.output))}",
    m.Commit: lambda x: f"{x.move} at {x.num_output}",
    m.Abandon: lambda x: f"{x.move}: {x.reason}",
    m.Resumed: lambda x: f"{x.move} up to {x.num_output}",
    m.Declined: lambda x: f"{x.move}: {x.reason}",
    m.KvWanted: lambda x: f"{x.move} from byte {x.num_bytes} on",
    m.KvPart: lambda x: (
        f"{x.move} tokens {span(x.kv.first, x.kv.last - x.kv.first)}, "
        f"bytes {span(x.offset, len(x.data))} of {x.total}"
    ),
    m.KvEnd: lambda x: f"{x.move}" + (f": {x.problem}" if x.problem else ""),
    m.KvDone: lambda x: f"{x.move}",
    m.KvTaken: lambda x: (
        f"{x.move}: {x.report.num_tokens} tokens" + (f", {x.report.problem}" if x.report.problem else "")
    ),
    m.Relayed: lambda x: f"for {x.peer}: {describe(x.message)}",
}


def describe(message: Message) -> str:
    """A message on one line; what is long or changes with the limits is left out."""
    words = _WORDS.get(type(message))
    return type(message).__name__ + (f" {words(message)}" if words else "")
