"""Other people's trainers, fed with rollouts of environments."""
