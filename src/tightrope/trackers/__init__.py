"""Where else a run's numbers go: TensorBoard, Weights & Biases, Trackio, MLflow, or a function of one's own.

base      what a tracker is told about the run, and what it must offer
names     from a record to metric names: ours, and TRL's beside them
guarded   the queue and thread between a run and its trackers: whatever a tracker does, the run goes on
memory    what each tracker was told already, kept in the run folder for a resume
backends  the four that are built in
"""
