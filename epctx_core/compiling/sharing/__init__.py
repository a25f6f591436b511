"""Share groups: context models that name one binary for each EP, in which equal weights are stored once."""
