"""Where the modules and names of earlier builds are now.

A failed import of `avow.*` asks this table (see `avow._MovedModules`). So does a name that left a module which still
exists: that module has `__getattr__ = moved_names(__name__)`. The error names the new place. CHANGELOG.md has the same
table; a test compares the two and imports every new place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

DOCUMENTED: Final = {  # named in the README, the docs or the examples
    "avow.channel.dialing": "avow.channel.connector",
    "avow.channel.protocol.Bounds": "avow.channel.protocol.events.Bounds",
    "avow.channel.states": "avow.channel.protocol.states",
    "avow.cli.reference": "tools.reference",
    "avow.client.reading": "avow.client.reader",
    "avow.testing.nursery": "avow_lab.campaigns.harness.fork_server",
    "avow.testing.nursery_peers": "avow_lab.campaigns.harness.forked_peers",
    "avow.testing.programs": "avow_lab.campaigns.harness.programs",
    "avow.testing.transcript": "avow_lab.transcripts.transcript",
}
UNDOCUMENTED: Final = {
    "avow.barrier.cleaning": "avow.barrier.cleanup",
    "avow.barrier.rows": "avow.barrier.sql_rules",
    "avow.barrier.session": "avow.barrier.db_connection",
    "avow.channel.frames": "avow.channel.protocol.frames",
    "avow.channel.inbox": "avow.channel.endpoint",
    "avow.channel.incoming": "avow.channel.protocol.incoming",
    "avow.channel.keeping": "avow.channel.registry",
    "avow.channel.open_websocket": "avow.channel.transports.websocket",
    "avow.channel.outgoing": "avow.channel.protocol.outgoing",
    "avow.channel.protocol.CommitAcked": "avow.channel.protocol.events.CommitAcked",
    "avow.channel.protocol.CommitDelivered": "avow.channel.protocol.events.CommitDelivered",
    "avow.channel.protocol.Connected": "avow.channel.protocol.events.Connected",
    "avow.channel.protocol.Core": "avow.channel.protocol.core.Core",
    "avow.channel.protocol.Ended": "avow.channel.protocol.events.Ended",
    "avow.channel.protocol.Event": "avow.channel.protocol.events.Event",
    "avow.channel.protocol.Messages": "avow.channel.protocol.events.Messages",
    "avow.channel.protocol.Resumed": "avow.channel.protocol.events.Resumed",
    "avow.channel.protocol.Suspended": "avow.channel.protocol.events.Suspended",
    "avow.channel.protocol.check_bounds": "avow.channel.protocol.core.check_bounds",
    "avow.channel.sockets": "avow.channel.transports.socket",
    "avow.channel.storefile": "avow.channel.stores",
    "avow.channel.waiting": "avow.channel.waiters",
    "avow.channel.webchannel": "avow.channel.transports.webchannel",
    "avow.channel.webchannel_forms": "avow.channel.transports.webchannel",
    "avow.channel.websocket": "avow.channel.transports.websocket_handshake",
    "avow.client.alarm": "avow.client.timer",
    "avow.client.batching": "avow.client.batches",
    "avow.client.carrying": "avow.client.producer_connection",
    "avow.client.columns": "avow.client.message_columns",
    "avow.client.deliveries": "avow.client.acknowledgements",
    "avow.client.following": "avow.client.queue",
    "avow.client.http": "avow.transport.connection",
    "avow.client.links": "avow.client.peer_connection",
    "avow.client.local_files": "avow.client.reader",
    "avow.client.metadata": "avow.client.descriptions",
    "avow.client.outbox": "avow.client.batches",
    "avow.client.pubsub_sending": "avow.client.pubsub_sender",
    "avow.client.pubsub_settling": "avow.client.pubsub_unresolved",
    "avow.client.pushed": "avow.client.push_stream",
    "avow.client.saved": "avow.client.pending_store",
    "avow.client.sending": "avow.client.lane_sender",
    "avow.client.settling": "avow.client.producer_connection",
    "avow.client.survey": "avow.client.cluster_view",
    "avow.client.turn": "avow.client.lane_batcher",
    "avow.peer": "avow.server, avow.node",
    "avow.spark.archive": "avow.spark.source.archive",
    "avow.spark.loss": "avow.spark.source.planning",
    "avow.spark.offsets": "avow.spark.source.offsets",
    "avow.spark.options": "avow.spark.source.options",
    "avow.spark.pipelines.archiving": "avow.spark.pipelines.archive_pipeline",
    "avow.spark.pipelines.auditing": "avow.spark.pipelines.audit",
    "avow.spark.pipelines.metrics": "avow.spark.pipelines.status",
    "avow.spark.pipelines.replaying": "avow.spark.pipelines.replay_pipeline",
    "avow.spark.pipelines.reporting": "avow.spark.pipelines.reports",
    "avow.spark.pipelines.running": "avow.spark.pipelines.runner",
    "avow.spark.pipelines.shaping": "avow.spark.pipelines.result_rows",
    "avow.spark.pipelines.sources": "avow.spark.pipelines.inputs",
    "avow.spark.pipelines.transforming": "avow.spark.pipelines.transform_pipeline",
    "avow.spark.pipelines.trimming": "avow.spark.pipelines.archive_pipeline",
    "avow.spark.planning": "avow.spark.source.planning",
    "avow.spark.reading": "avow.spark.source.partition_reader",
    "avow.spark.rows": "avow.spark.source.rows",
    "avow.spark.sink.BATCH_ID": "avow.spark.sink.writers.BATCH_ID",
    "avow.spark.sink.BatchWriter": "avow.spark.sink.writers.BatchWriter",
    "avow.spark.sink.CHECK_TIMEOUT_S": "avow.spark.sink.writers.CHECK_TIMEOUT_S",
    "avow.spark.sink.Messages": "avow.spark.sink.writers.Messages",
    "avow.spark.sink.Parts": "avow.spark.sink.writers.Parts",
    "avow.spark.sink.QUERY_ID": "avow.spark.sink.writers.QUERY_ID",
    "avow.spark.sink.Staged": "avow.spark.sink.writers.Staged",
    "avow.spark.sink.StreamWriter": "avow.spark.sink.writers.StreamWriter",
    "avow.spark.sink.batch_writer": "avow.spark.sink.writers.batch_writer",
    "avow.spark.sink.discard": "avow.spark.sink.writers.discard",
    "avow.spark.sink.parts_of": "avow.spark.sink.writers.parts_of",
    "avow.spark.sink.publish": "avow.spark.sink.writers.publish",
    "avow.spark.sink.stage": "avow.spark.sink.writers.stage",
    "avow.spark.sink.stream_writer": "avow.spark.sink.writers.stream_writer",
    "avow.spark.sink_options": "avow.spark.sink.options",
    "avow.spark.sink_rows": "avow.spark.sink.routing",
    "avow.spark.source.AvowSource": "avow.spark.source.data_source.AvowSource",
    "avow.spark.source.FORMAT": "avow.spark.source.data_source.FORMAT",
    "avow.spark.source.arrow_schema": "avow.spark.source.data_source.arrow_schema",
    "avow.spark.source.kafka_schema": "avow.spark.source.data_source.kafka_schema",
    "avow.spark.staging": "avow.spark.sink.writers",
    "avow.spark.streaming": "avow.spark.source.stream_reader",
    "avow.spark.surveying": "avow.spark.source.queue_survey",
    "avow.spark.tables.compacting": "avow.spark.tables.compaction",
    "avow.spark.tables.copying": "avow.spark.tables.postgres_copy",
    "avow.spark.tables.files": "avow.spark.tables.data_files",
    "avow.spark.tables.manifests": "avow.spark.tables.parquet",
    "avow.spark.tables.opening": "avow.spark.tables.tables",
    "avow.spark.tables.ranges": "avow.spark.tables.version_ranges",
    "avow.spark.tables.source": "avow.spark.tables.table_source",
    "avow.testing.campaign": "avow_lab.simulator.runner",
    "avow.testing.channel": "avow_lab.channel_machine",
    "avow.testing.channel_vectors": "tools.channel_vectors",
    "avow.testing.clients": "avow_lab.simulator.two_phase_clients",
    "avow.testing.convergence": "avow_lab.checkers.convergence",
    "avow.testing.delegate": "avow_lab.mutations.delegate",
    "avow.testing.demo": "avow_lab.demo",
    "avow.testing.driver": "avow_lab.simulator.driver",
    "avow.testing.faults": "avow_lab.simulator.fault_schedule",
    "avow.testing.hunt": "avow_lab.mutations.hunt",
    "avow.testing.ledger": "avow_lab.checkers.two_phase",
    "avow.testing.metadata_ledger": "avow_lab.checkers.metadata",
    "avow.testing.mutations": "avow_lab.mutations.two_phase",
    "avow.testing.mutations_node": "avow_lab.mutations.node",
    "avow.testing.mutations_pubsub": "avow_lab.mutations.pubsub",
    "avow.testing.mutations_two_phase": "avow_lab.mutations.two_phase",
    "avow.testing.naive": "avow_lab.simulator.naive",
    "avow.testing.nursery_home": "avow_lab.campaigns.harness.fork_server_process",
    "avow.testing.nursery_requests": "avow_lab.campaigns.harness.fork_server_process",
    "avow.testing.operator": "avow_lab.simulator.operator",
    "avow.testing.plan": "avow_lab.simulator.plan",
    "avow.testing.prove": "avow_lab.campaigns.peers",
    "avow.testing.prove_chain": "avow_lab.campaigns.chain",
    "avow.testing.prove_pledges": "avow_lab.campaigns.pledges",
    "avow.testing.prove_spark": "avow_lab.campaigns.spark",
    "avow.testing.pubsub": "avow_lab.simulator.simulation",
    "avow.testing.pubsub_clients": "avow_lab.simulator.pubsub_clients",
    "avow.testing.pubsub_ledger": "avow_lab.checkers.pubsub",
    "avow.testing.pubsub_mutations": "avow_lab.mutations.pubsub",
    "avow.testing.responding": "avow_lab.campaigns.harness.http_responder",
    "avow.testing.simulation": "avow_lab.simulator.simulation",
    "avow.testing.transcript_bench": "avow_lab.transcripts.bench",
    "avow.testing.transcript_pubsub": "avow_lab.transcripts.pubsub",
    "avow.testing.transcript_text": "avow_lab.transcripts.text",
    "avow.testing.transcript_two_phase": "avow_lab.transcripts.two_phase",
    "avow.testing.two_phase": "avow_lab.simulator.simulation",
    "avow.testing.world": "avow_lab.simulator.world",
    "avow.wire.failures": "avow.wire.error_body",
}
MOVED: Final = {**DOCUMENTED, **UNDOCUMENTED}


def raise_if_moved(module: str) -> None:
    if module in MOVED:
        # without a name: `from avow.testing import nursery` would hide an error that has the name of the module
        raise ModuleNotFoundError(_advice(module))


def moved_names(module: str) -> Callable[[str], NoReturn]:
    """The `__getattr__` of a package whose names moved."""

    def missing(name: str) -> NoReturn:
        old = f"{module}.{name}"
        if old in MOVED:
            raise ImportError(_advice(old), name=module)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return missing


def _advice(old: str) -> str:
    return f"{old} does not exist any more. Use {MOVED[old]}; CHANGELOG.md lists everything that moved"
