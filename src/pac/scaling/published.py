"""Numbers the paper prints about its models: for comparison, not formulas of ours."""

PARAMETERS = {"XXS": 32e6, "XS": 73e6, "S": 164e6, "M": 391e6, "L": 988e6}

# Table "FLOPs costs": forward of one time step, backward, and one update at B = 512. The formulas beside it are
# misprinted (docs/paper.md); the table follows backward = 2.01 forward and update = 512 * 3.01 forward.
FLOPS = {
    "XXS": {"forward": 7.826e9, "backward": 1.573e10, "update": 1.206e13},
    "XS": {"forward": 1.360e10, "backward": 2.733e10, "update": 2.096e13},
    "S": {"forward": 2.341e10, "backward": 4.705e10, "update": 3.607e13},
    "M": {"forward": 4.380e10, "backward": 8.804e10, "update": 6.750e13},
    "L": {"forward": 1.040e11, "backward": 2.090e11, "update": 1.602e14},
}
