"""Four models whose updates are pairs of vectors (SFB, section 2), for the programs train_factors_*.py.

model: what a model is, and how one process trains it. mlr, dml, sc, sdca: the models. data: what they are trained on.
job: options, the training by all ranks, tables and plots.
"""
