"""The default pledge store: a queue of the cluster itself."""
