"""Learning experiments that anyone can rerun: settings, seeds, a ledger of what came out, plots and tables."""
