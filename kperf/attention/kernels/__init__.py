"""The kernels: the plain one that is overridden, the Gluon sources of the overrides, and the stock compiler's best."""
