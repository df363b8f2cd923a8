"""Security: authentication of clients and their authorization.

Pure, except `https`, which asks OAuth servers: no connections to brokers, no store. The server calls it for
every connection and request; clients, among them brokers and the command line, call it for their side of a
login. `ottla.metadata` reads and watches what is stored in ZooKeeper: credentials, delegation tokens, ACLs.
"""
