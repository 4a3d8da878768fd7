"""`python -m plm_embed` is `plm-embed`."""

from plm_embed.cli.main import main

main()
