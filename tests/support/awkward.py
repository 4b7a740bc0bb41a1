"""Texts and names that databases treat differently: what they store, fold, compare, cut or sort."""

NAMES = [
    "Straße",
    "STRASSE",
    "a_b",
    "a-b",
    "a b",
    "a b ",
    "aB",
    "ab",
    "Ab",
    "a%b",
    "a\\b",
    "a'b",
    "\u0130i",
    "\u0131I",
    "é",
    "É",
    "e\u0301",
    "z10",
    "z9",
    "_z",
    "\U0001f9ed",
    "\ufb01n",
    "n" * 600,
]

TEXTS = {
    "NUL": "a\0b",
    "letters": "\U0001f9ed I\u0131\u0130i e\u0301\u00e9 \u200f \ufeff",
    "spaces": "  trailing  \n\t ",
    "empty": "",
    "long": "x" * 10_000_000,
    "half": "half \ud800 of a character",
}
