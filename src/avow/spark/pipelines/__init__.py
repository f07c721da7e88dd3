"""Pipelines: archive, transform, replay. Run from a file with `avow pipeline run`, or from Python:

    from avow.spark.pipelines import archive, read_spec

    pipeline = archive(spark, read_spec("orders.toml"))
    pipeline.wait()

Each function returns a running pipeline with `wait`, `stop` and `counts`. See docs/pipelines.md.
"""

from avow.spark.pipelines.archive_pipeline import archive
from avow.spark.pipelines.failures import PipelineFailed
from avow.spark.pipelines.pipeline import Pipeline
from avow.spark.pipelines.replay_pipeline import replay
from avow.spark.pipelines.row_function import Message
from avow.spark.pipelines.spec import (
    ArchiveSpec,
    Cluster,
    ReplaySpec,
    Sink,
    Source,
    SparkSettings,
    TransformSpec,
    read_spec,
)
from avow.spark.pipelines.transform_pipeline import transform

__all__ = [
    "ArchiveSpec",
    "Cluster",
    "Message",
    "Pipeline",
    "PipelineFailed",
    "ReplaySpec",
    "Sink",
    "Source",
    "SparkSettings",
    "TransformSpec",
    "archive",
    "read_spec",
    "replay",
    "transform",
]
