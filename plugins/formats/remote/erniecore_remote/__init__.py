"""Data files elsewhere for erniecore: fetched by fsspec where a source is such a URL, and kept here."""
