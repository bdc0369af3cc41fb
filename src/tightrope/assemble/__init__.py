"""From a config to a run: the only package that imports everything.

inputs   what can be checked without weights: folders, manifests, tokenizer, the whole data set
online   a run with rollouts: PPO, RLOO
offline  a run over a fixed data set: SFT, reward model, DPO
stage    the life of a run: start, resume, save, export
"""
