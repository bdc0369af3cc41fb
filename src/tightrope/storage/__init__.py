"""The run folder: what is written during a run, and how it is read again after anything happened to the process."""
