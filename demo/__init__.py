"""The main job, `make run`: events through a cluster that loses a broker, into a lake, with an audit."""
