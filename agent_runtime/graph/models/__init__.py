"""The model that answers: made from the settings, called with retries, its answers checked before they are believed."""

from agent_runtime.graph.models.call import model_calls
from agent_runtime.graph.models.make import make_model, take_keys

__all__ = ["make_model", "model_calls", "take_keys"]
