"""How long a resume takes: a·(t_in + t_out) + b with t_out = d/t, the formula of ServerlessLLM (OSDI 2024).

t_in, t_out: prompt and output tokens; d: seconds that the request has been decoding; t: its mean seconds a
token. The router knows d and t, so nobody is polled for t_out. a is one over the prefill rate and b the
overhead: the same line as `recompute` in `godwit.costs.crossover`.
"""

from godwit.costs.accuracy import PredictionErrors
from godwit.costs.fit import Line, OnlineLine


class ResumeTimes:
    """One server's resume times for one model. Not thread-safe.

    `prior` is the line assumed until resumes have been seen: seconds over context tokens, intercept b and
    slope a. `errors` are those of the predictions given to `record`.
    """

    def __init__(self, prior: Line, window: int = 64) -> None:
        self.errors = PredictionErrors()
        self._line = OnlineLine(prior, window)

    @property
    def line(self) -> Line:
        """The present a (slope, seconds a token) and b (intercept, seconds)."""
        return self._line.line

    def estimate_s(self, num_prompt: int, running_s: float, token_s: float) -> float:
        """Seconds to resume a request with `num_prompt` prompt tokens that has been decoding for `running_s`
        at a mean of `token_s` a token; ValueError unless `token_s` is above 0."""
        if not token_s > 0:
            raise ValueError(f"a token takes more than 0 s, not {token_s}")
        return self.line.at(num_prompt + running_s / token_s)

    def record(self, context_tokens: int, predicted_s: float, actual_s: float) -> None:
        """A resume of `context_tokens` (prompt and output) took `actual_s`; `predicted_s` was estimated."""
        self._line.add(context_tokens, actual_s)
        self.errors.record(predicted_s, actual_s)
