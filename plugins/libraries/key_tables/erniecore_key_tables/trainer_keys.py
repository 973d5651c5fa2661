"""Keys of Hugging Face's ``TrainingArguments`` that toolkits built on it share, and that belong together."""

from __future__ import annotations

from erniecore_key_tables.draft import Draft


def resume(draft: Draft) -> None:
    """``run.resume`` from ``resume_from_checkpoint``, or else from ``overwrite_output_dir``."""
    if draft.has("resume_from_checkpoint"):
        wanted = str(draft.get("resume_from_checkpoint"))
        chosen = {"true": "must", "false": "auto"}.get(wanted.lower(), wanted)
        draft.set("run.resume", chosen, "resume_from_checkpoint")
        if chosen == wanted:
            toolkit = draft.table.toolkit
            text = f"a checkpoint of erniecore; those of {toolkit} are not read, name their weights as model.path"
            draft.note("differs", text, "resume_from_checkpoint")
        draft.drop("`resume_from_checkpoint` decides", "overwrite_output_dir")
    elif draft.has("overwrite_output_dir"):
        anew = bool(draft.get("overwrite_output_dir"))
        draft.set("run.resume", "never" if anew else "auto", "overwrite_output_dir")
        if anew:
            text = "never: a directory that holds a run is refused, not overwritten; remove it, or choose another output_dir"
            draft.note("differs", text, "overwrite_output_dir")
