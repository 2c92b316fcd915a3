"""Three kinds of models that train with Parameter Flow (section 5), for the programs train_flow_*.py.

data reads the training data. model is the interface of the models lr, mf and cnn. exchange makes the exchange of their
updates. job has the options, the training by all ranks, tables and plots.
"""
