"""`python -m plm_embed` is `plm-embed`."""

from plm_embed.cli import main

main()
