"""The actions of `epctx plugins`, and what they look at: plugins are tried in processes of their own."""
