"""The table of models: `MODELS` by their published names, and `find_model` for any name of one."""

from plm_embed.models.registry import MODELS, Model, find_model

__all__ = ["MODELS", "Model", "find_model"]
