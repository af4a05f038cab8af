"""Diffusers pipelines and schedulers, corrected on schedule."""

from trimtab.integrations.diffusers.wrapping import ProjectionCallback, pipeline_sampler, unwrap, wrap

__all__ = ["ProjectionCallback", "pipeline_sampler", "unwrap", "wrap"]
