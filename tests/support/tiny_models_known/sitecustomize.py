"""Every Python that has this folder in PYTHONPATH, and `tests`, knows the tiny models."""

from support.tiny_models import register

register()
