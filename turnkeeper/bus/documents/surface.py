"""Text files that an author gives to a task, to one of its runs, or with a message: `--file`."""

from turnkeeper.config.surfaces import Surface

SURFACE = Surface(
    name="documents",
    offers={
        "prompt with documents": "turnkeeper.bus.documents.documents:with_documents",
        "documents in words": "turnkeeper.bus.documents.documents:in_words",
        "documents-job": "agent_runtime.graph.offline.documents:job",
    },
    also=("agent_runtime.graph.offline.documents",),
)
