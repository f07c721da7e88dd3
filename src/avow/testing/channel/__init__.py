"""Two ends of a channel on bad sockets, a model of what they promise, and mistakes that the model must notice."""
