"""How long a checkpoint takes to load: q + n/b, the formula of ServerlessLLM (Fu et al., OSDI 2024).

q: seconds that earlier loads in the same queue still take; n: the checkpoint's bytes; b: bytes/s of the
slowest tier on its way to the device, re-estimated from every load that really happened.
"""

from collections.abc import Mapping

from godwit.costs.accuracy import PredictionErrors
from godwit.costs.fit import OnlineConstant
from godwit.types import Tier


class LoadTimes:
    """One server's loading times. Not thread-safe.

    `bandwidths_bytes_per_s` are assumed rates out of each tier but `device`, all above 0; a load from a tier
    passes those above it too, so the slowest of them counts until loads have been seen. `errors` are those of
    the predictions given to `record`.
    """

    def __init__(self, bandwidths_bytes_per_s: Mapping[Tier, float], window: int = 64) -> None:
        self.errors = PredictionErrors()
        # Seconds a byte, since it is times that add up and whose outliers must not count.
        self._seconds_per_byte: dict[Tier, OnlineConstant] = {}
        slowest = 0.0
        for tier in (Tier.DRAM, Tier.SSD, Tier.REMOTE):
            bandwidth = bandwidths_bytes_per_s.get(tier, 0.0)
            if not bandwidth > 0:
                raise ValueError(f"the bandwidth of tier {tier} is above 0 bytes/s, not {bandwidth}")
            slowest = max(slowest, 1 / bandwidth)
            self._seconds_per_byte[tier] = OnlineConstant(slowest, window)

    def bandwidth_bytes_per_s(self, tier: Tier) -> float:
        """The present estimate of b for a load from `tier`; infinite for what is on the device."""
        return float("inf") if tier is Tier.DEVICE else 1 / self._seconds_per_byte[tier].value

    def estimate_s(self, tier: Tier, checkpoint_bytes: int, queue_s: float = 0.0) -> float:
        """Seconds until a checkpoint in `tier` is loaded; `queue_s` is q. 0 for what is on the device."""
        if tier is Tier.DEVICE:
            return 0.0
        return queue_s + checkpoint_bytes * self._seconds_per_byte[tier].value

    def record(self, tier: Tier, checkpoint_bytes: int, predicted_s: float, actual_s: float) -> None:
        """A load from `tier` took `actual_s` from its turn in the queue on; `predicted_s` without the queue.

        ValueError where nothing was loaded, or from the device.
        """
        if tier is Tier.DEVICE or checkpoint_bytes <= 0 or not actual_s > 0:
            raise ValueError(f"not a load: {checkpoint_bytes} bytes from {tier} in {actual_s} s")
        self._seconds_per_byte[tier].add(actual_s / checkpoint_bytes)
        self.errors.record(predicted_s, actual_s)
