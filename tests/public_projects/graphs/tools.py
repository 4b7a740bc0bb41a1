"""Tools of the small graphs: a search and a mail, both at the local stubs."""

import os

import httpx


def search(query: str) -> str:
    """Search the web."""
    found = httpx.post(f"{os.environ['STUBS']}/search", json={"query": query}, timeout=60).json()
    return str(found["results"][0]["content"])


def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    sent = httpx.post(f"{os.environ['STUBS']}/mail", json={"to": to, "text": text}, timeout=60).json()
    return f"sent as {sent['id']}"
