"""Three kinds of models for Parameter Flow (section 5), for the programs train_flow_*.py.

data: the training data. model: the interface of a model. lr, mf, cnn: the models. exchange: the exchange of their
updates. job: options, the training by all ranks, tables and plots.
"""
