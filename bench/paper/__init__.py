"""The experiment of the Kafka paper (Kreps, Narkhede, Rao, NetDB 2011), its section on results."""
