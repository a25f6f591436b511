"""Where everything goes that a compile writes: said and checked before it begins, handed over when it is done."""
