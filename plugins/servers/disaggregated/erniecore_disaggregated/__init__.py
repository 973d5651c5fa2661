"""Server ``disaggregated``: prompts and completions are computed by processes of their own, whose roles can change."""
