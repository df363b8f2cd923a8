"""The authorization of requests, API by API, as in Kafka's KafkaApis.

Used only with an authorizer (`authorizer.class.name`): then `checks.authorized_route` puts a check before
each handler. A check rejects a request, or removes the resources that its sender is not authorized for and
adds their errors to the response. So handlers contain no authorization, and without an authorizer it costs
nothing. Produce and Fetch, whose responses are ready bytes, check each topic themselves
(`auth_helper.TopicAuthorizer`).
"""
