"""The agent's model. It is made from the settings and called with retries, and its answers are checked before use."""
