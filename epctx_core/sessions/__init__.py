"""Sessions: a plan of steps over compiled partitions, loaded context nodes and CPU
kernels.
"""
