"""From files to token ids: readers, chat format, pre-flight, splits, samplers."""
