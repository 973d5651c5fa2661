"""Columnar data files for erniecore: parquet and arrow are read, and ``ernie data convert`` writes rows in other formats."""
