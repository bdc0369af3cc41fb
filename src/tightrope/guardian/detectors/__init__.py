"""One alarm a file: a pure function over the history of a run, used live and on recorded runs alike."""
