"""Chat templates run in a sandbox and say what is wrong."""

import pytest

from godwit.engines.chat import ChatTemplate
from godwit.errors import BadRequestError, ConfigError
from godwit.types import ChatMessage
from tests.engines.rig import Rig

USER = ChatMessage("user", "hi")


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos="<s>", eos="</s>")


def test_it_renders_turns_tokens_and_where_the_answer_begins() -> None:
    source = (
        "{{ bos_token }}\n{% for m in messages %}\n{{ m.role }}:{{ m.content }}{{ eos_token }}\n"
        "{% endfor %}\n{% if add_generation_prompt %}assistant:{% endif %}"
    )
    assert template(source).render([USER]) == "<s>\nuser:hi</s>\nassistant:"


def test_the_models_own_template_adds_its_default_system_prompt_once(llama_rig: Rig) -> None:
    plain = llama_rig.engine.render([USER])
    assert plain.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert plain.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    own = llama_rig.engine.render([ChatMessage("system", "Be brief."), USER])
    assert own.startswith("<|im_start|>system\nBe brief.<|im_end|>")
    assert "SmolLM" not in own


def test_a_template_that_refuses_is_a_bad_request_with_its_words() -> None:
    with pytest.raises(BadRequestError, match="roles must alternate") as caught:
        template("{{ raise_exception('roles must alternate') }}").render([USER])
    assert caught.value.param == "messages"


def test_a_template_cannot_reach_out_of_its_sandbox() -> None:
    with pytest.raises(BadRequestError):
        template("{{ messages.__class__.__mro__[1].__subclasses__() }}").render([USER])


def test_a_template_that_cannot_be_read_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError):
        template("{% for %}")


def test_it_knows_the_date() -> None:
    assert template("{{ strftime_now('%Y') }}").render([USER]).isdigit()
