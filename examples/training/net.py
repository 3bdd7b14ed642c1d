"""The network of docs/tangent.md."""

import netsor as ns

net = ns.zoo.mlp(3, ns.erf, var_w=2.0, var_b=0.3)
