"""Four models whose updates are pairs of vectors (SFB, section 2), for the programs train_factors_*.py.

model has the interface of the models mlr, dml, sc and sdca, and training by one process. data reads the training data.
job has the options, the training by all ranks, tables and plots.
"""
