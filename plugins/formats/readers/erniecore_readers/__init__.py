"""More kinds of data files for erniecore: csv and tsv tables; xz and zst around files of any kind."""
