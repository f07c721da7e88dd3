"""Two ends of a channel on faulty sockets, a model of their promises, and mistakes that the model must catch."""
