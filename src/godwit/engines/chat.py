"""Chat templates: the jinja text in a model file, or one from the settings, run in a sandbox."""

from collections.abc import Sequence
from datetime import datetime

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from godwit.errors import BadRequestError, ConfigError
from godwit.types import ChatMessage


class ChatTemplate:
    """Renders a conversation up to where the answer begins."""

    def __init__(self, source: str, *, bos: str, eos: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ConfigError(f"the chat template cannot be read: {error}") from error
        self._tokens = {"bos_token": bos, "eos_token": eos}

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """The prompt text; BadRequestError with the template's own words where it refuses the messages."""
        turns = [
            {"role": m.role, "content": m.content} | ({"name": m.name} if m.name else {}) for m in messages
        ]
        try:
            return self._template.render(messages=turns, add_generation_prompt=True, **self._tokens)
        except (TemplateError, TypeError, ValueError) as error:
            raise BadRequestError(
                f"the chat template refuses these messages: {error}", param="messages"
            ) from error


def find_template(source: str | None, *, bos: str, eos: str) -> ChatTemplate | None:
    """The template of a text; None where there is none. ConfigError where it cannot be read."""
    return None if source is None else ChatTemplate(source, bos=bos, eos=eos)


def render_with(template: ChatTemplate | None, model: str, messages: Sequence[ChatMessage]) -> str:
    """The prompt text; BadRequestError where `model` has no template, or its template refuses."""
    if template is None:
        raise BadRequestError(
            f"model {model} has no chat template: use /v1/completions, "
            "or set chat_template in the model's options",
            param="messages",
        )
    return template.render(messages)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
