"""The agent's model: made from the settings, called with retries; its answers are checked before use."""
