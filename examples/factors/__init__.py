"""Four models whose updates are pairs of vectors (SFB, section 2), for the programs train_factors_*.py.

model: the interface of a model, and its training by one process. mlr, dml, sc, sdca: the models. data: the training
data. job: options, the training by all ranks, tables and plots.
"""
