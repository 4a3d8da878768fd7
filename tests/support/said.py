"""What a command said: its error, its warnings, and what they tell to do."""

import re

WAYS = re.compile(
    r"--forcerun (?P<forced>[^`\s,;]+)|run `plm-embed "
    r"(?P<command>[^`\n]+)`|by hand `plm-embed (?P<step>\w+)`"
)
"""What messages say that one can do: run the workflow by a rule or a file, run a command as it
stands, or a step.
"""


def error_of(message: str) -> str:
    """What the user is told, without the log before it, and without what Snakemake says after
    it.
    """
    found = re.search(
        r"(plm-embed: error|^Error): .*?(?=\n={20}|\Z)", message, re.MULTILINE | re.DOTALL
    )
    return found[0] if found else message


ACTION = re.compile(r"\b(run|remove|make)\b|--forcerun", re.IGNORECASE)
WARNING = re.compile("^warning +(.*)$", re.MULTILINE)
TIMES = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?( UTC)?|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}"
)
