"""The admin API: what operators see and order, for `godwit status`, `models`, `migrate` and others."""
