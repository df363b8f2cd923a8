"""Security: who a client is, and what it may do.

Pure: no sockets, no store. `principals` names who somebody is. The server asks here for every connection and
request, the client side of a connection between brokers, or of the CLI, for its own part of the exchange.
Reading and following what is stored (credentials, tokens, ACLs) is `ottla.metadata`'s matter.
"""
