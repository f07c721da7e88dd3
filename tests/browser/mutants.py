"""Mistakes for the browser's module: a text to find there, and one for its place. The vectors must notice each."""

from __future__ import annotations

MUTANTS = {
    "what a commit covers is not handed back": (
        "code, name, pending)",
        "code, name, pending.filter((one) => !one.commit))",
    ),
    "ack makes no room": ("covered_to = run.upto", ""),
    "resume one too far": ("\tgiven_to = to\n", "\tgiven_to = min(to + 1, sent_to)\n"),
    "commit not sent again": ("commits_given_to = has\n", "commits_given_to = commits\n"),
    "lost ack not repeated": (
        "received_to, commits_received_to, acknowledged, cap",
        "received_to, commits_received_to, 0, cap",
    ),
    "ack of a superseded commit ignored": ("if (id <= acked) return\n", "if (id < commits) return\n"),
    "ack releases to the newest commit": ("settle(runs, id)?.upto ?? released_to", "sent_to"),
    "commit overtakes data": ("if (given_to < upto) {", "if (given_to < upto && !run) {"),
    "suspended without a commit": (
        "if (at_limit()) commit()\n\t\treturn sent_to",
        "suspended ||= at_limit()\n\t\treturn sent_to",
    ),
    "never resumes": ("load() <= 0.5", "load() < 0"),
    "resumes too early": ("load() <= 0.5", "load() < 1"),
    "older socket not fenced": ("from === generation && link", "link"),
    "stale hello accepted": ("next <= generation ||", ""),
    "empty commit swallowed": ("if (run?.upto === upto)", "if (upto === 0) return\n\tif (run?.upto === upto)"),
    "commit blocked by suspension": (
        "\t\talive()\n\t\textend(",
        "\t\talive()\n\t\tif (suspended) return commits\n\t\textend(",
    ),
    "no cap in messages": ("received_to + count - covered_to > cap_count ||", ""),
    "no cap in bytes": ("|| bytes - covered > cap_bytes", ""),
    "all fates unknown": ('number <= delivered_to ? "delivered" :', ""),
    "last word not heard": ("ever_given_to = delivered_to = max(delivered_to, to)", "0"),
    "unknown channel believed": ('code !== "UNKNOWN_CHANNEL" && ', ""),
    "an end of a stranger believed": (' && (to || link === "up")', ""),
    "fenced ends the channel": ('if (code === "FENCED") return', "if (0) return"),
    "order of messages not checked": ("must(first === received_to + 1)\n", ""),
    "place of commits not checked": ("must(upto === received_to && ", "must("),
    "positions of a hello not checked": ('return end("IMPOSSIBLE")', ";"),
    "a large message beside others": ("before === size_bytes", "before"),
    "never fresh": ("fresh = initiator", "fresh = false"),
}
