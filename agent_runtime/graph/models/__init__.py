"""The model that answers: made from the settings, called with retries, its answers checked before they are believed."""
