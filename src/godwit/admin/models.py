"""Models that come and go while the head runs: /admin/models."""

import asyncio
from functools import partial

from aiohttp import web

from godwit.admin.door import Door, answer
from godwit.admin.shapes import ModelAnswers, Models, PinOrder
from godwit.admin.status import emulated_tiers, model_listings
from godwit.config import ModelSettings, Settings, check_settings
from godwit.errors import BadRequestError, ConfigError, ConflictError, UnavailableError
from godwit.keeper import Keeper
from godwit.scheduling.catalog import Answers
from godwit.scheduling.control import Control
from godwit.types import ModelName

ANSWER_S = 600.0
"""How long workers may take to add a model, the fetching of its checkpoint included."""


class ModelAdmin:
    """The handlers under /admin/models. They answer once what they changed is kept."""

    def __init__(self, control: Control, keeper: Keeper, door: Door) -> None:
        self._control = control
        self._keeper = keeper
        self._door = door

    async def list_all(self, request: web.Request) -> web.Response:
        """Every model and where it is."""
        self._door.check(request)
        return answer(Models(model_listings(self._control), emulated_tiers(self._control)))

    async def add(self, request: web.Request) -> web.Response:
        """Have all workers serve one more model; the answer is theirs, once all of them have answered."""
        self._door.check(request)
        model = _checked(await self._door.read(request, ModelSettings))
        over: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        self._control.add_model(model, partial(_tell, over))
        answers = await _within(over, f"{model.name}: not every worker has answered")
        if None not in answers.values():
            raise ConflictError(f"{model.name} was not added: {_reasons(answers)}")
        await self._keeper.keep(self._control.catalog)
        return _answered(model.name, answers)

    async def remove(self, request: web.Request) -> web.Response:
        """Have all workers forget a model that was added; the answer is theirs."""
        self._door.check(request)
        name = ModelName(request.match_info["name"])
        over: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        self._control.remove_model(name, partial(_tell, over))
        if name in self._control.catalog.pinned:
            self._control.pin(name, False)
        answers = await _within(over, f"{name}: not every worker has answered")
        await self._keeper.keep(self._control.catalog)
        return _answered(name, answers)

    async def pin(self, request: web.Request) -> web.Response:
        """Keep a model's instances on their devices, or let them be evicted again."""
        self._door.check(request)
        name = ModelName(request.match_info["name"])
        order = await self._door.read(request, PinOrder)
        self._control.pin(name, order.pinned)
        await self._keeper.keep(self._control.catalog)
        return answer({"model": name, "pinned": order.pinned})


def _tell(over: "asyncio.Future[Answers]", answers: Answers) -> None:
    # Whoever asked may have left by now.
    if not over.done():
        over.set_result(answers)


def _answered(model: str, answers: Answers) -> web.Response:
    return answer(ModelAnswers(model, {str(worker): reason for worker, reason in sorted(answers.items())}))


def _checked(model: ModelSettings) -> ModelSettings:
    try:
        return check_settings(Settings(models=(model,))).models[0]
    except ConfigError as error:
        raise BadRequestError(error.message) from error


async def _within(over: "asyncio.Future[Answers]", what: str) -> Answers:
    try:
        async with asyncio.timeout(ANSWER_S):
            return await over
    except TimeoutError as error:
        raise UnavailableError(
            f"{what} within {ANSWER_S:.0f} s; `godwit models list` shows where it is by now"
        ) from error


def _reasons(answers: Answers) -> str:
    reasons = [f"{worker}: {reason}" for worker, reason in sorted(answers.items()) if reason is not None]
    return "; ".join(reasons) or "no worker is connected; start one with `godwit worker --join URL`"
