"""Downstream benchmarks of trained models: lm-eval does the benchmarks, this gives it our models and data."""
