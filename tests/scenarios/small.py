"""A scenario that takes a moment, and needs no data."""

TOML = """
about = "two servers, three models"
report = "contention"
baselines = ["live_migration"]

[machines.box]
count = 2
device_gb = 10
dram_gb = 20

[models.m]
copies = 3
checkpoint_gb = 10
decode_ms = [20]
prefill_tps = 500
context_tokens = 4096

[workload]
model = "m"
source = "lognormal"
rate_per_s = 0.1
cv = 2
minutes = 5
prompts = { mean = 4, sigma = 0.5 }
outputs = { mean = 4, sigma = 0.5 }

[world]
timeout_s = 120

[policies.random]
policy = "random"

[policies.live_migration]
policy = "live_migration"

[cases]
"workload.rate_per_s" = [0.1, 0.2]

[sweep]
"machines.box.ssd_gb_per_s" = [1, 5]
"machines.box.dram_gb" = [10, 20]

[[published]]
model = "m"
rate_per_s = 0.2
policy = "random"
figures = { p99_over_live = 1000, requests = 60 }
"""

FLEET = """
about = "four servers that come and go"
report = "fleet"
baselines = ["reactive", "oracle"]

[machines.box]
count = 4
device_gb = 10
decode_tps = 12
prefill_tps = 150
has_loaded = true
sessions = { scale_s = 600, shape = 1, mean_gap_s = 60 }

[models.m]
checkpoint_gb = 10
context_tokens = 4096

[workload]
model = "m"
source = "lognormal"
rate_per_s = 0.02
minutes = 20
warm_up_minutes = 10
prompts = { mean = 4, sigma = 0.5 }
outputs = { mean = 6, sigma = 0.5 }
estimate_sigma = 0.4

[world]
grain = 8

[policies.reactive]
policy = "fastest"

[policies.window]
policy = "hazard"
early = { rule = "window" }

[policies.oracle]
policy = "hazard"
early = { rule = "window" }
knows = "leaving"

[ablations]
policies = ["window"]
keys = { "policies.window.early.hysteresis_s" = [0, 20] }
"""
