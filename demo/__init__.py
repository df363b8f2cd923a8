"""The main job, `make run`: real events through a real cluster that loses a broker, into a lake, audited."""
