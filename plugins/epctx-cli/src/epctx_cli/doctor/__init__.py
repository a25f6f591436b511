"""What `epctx doctor` looks at, one module for each: the environment, libraries, plugins, variables."""
