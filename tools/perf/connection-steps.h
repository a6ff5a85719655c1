/*
 * The steps of connecting a client to its server with the connection manager.
 *
 * The including file must define `struct link` with `cm` and `id`, `explain_refusal`, CONNECT_MS,
 * and include the option values, the clock of its program and `connection-events.h` before this
 * header.
 */

/* Waits for a step of the connection. The caller must acknowledge the event. */
static struct rdma_cm_event *await_event(struct link *link, enum rdma_cm_event_type kind, int limit_ms, const char *step,
					 const char *address)
{
	struct rdma_cm_event *event = NULL;
	struct pollfd file = { link->cm->fd, POLLIN, 0 };
	double end = now_s() + limit_ms / 1e3;
	while (!event) {
		int left_ms = (int)((end - now_s()) * 1e3);
		int ready = left_ms > 0 ? poll(&file, 1, left_ms) : 0;
		if (is_interrupted || (ready < 0 && errno != EINTR)) {
			failed("%s %s: %s", step, address, is_interrupted ? "interrupted" : strerror(errno));
			return NULL;
		}
		if (ready == 0) {
			failed("%s %s: no answer within %d s; does the server run there?", step, address, limit_ms / 1000);
			return NULL;
		}
		if (ready > 0 && rdma_get_cm_event(link->cm, &event)) {
			failed("%s %s: %s", step, address, strerror(errno));
			return NULL;
		}
		if (event && is_of_another(link, event))
			event = NULL;
	}
	if (event->event == kind)
		return event;
	if (event->event == RDMA_CM_EVENT_REJECTED)
		explain_refusal(event, address);
	else if (event->event == RDMA_CM_EVENT_ADDR_ERROR || event->event == RDMA_CM_EVENT_ROUTE_ERROR)
		failed("%s %s: no RDMA device leads there (%s); `ibv_devices` lists the devices", step, address,
		       strerror(abs(event->status)));
	else
		failed("%s %s: %s (status %d); does the server run there?", step, address, rdma_event_str(event->event),
		       event->status);
	rdma_ack_cm_event(event);
	return NULL;
}

static bool pass_event(struct link *link, enum rdma_cm_event_type kind, int limit_ms, const char *step, const char *address)
{
	struct rdma_cm_event *event = await_event(link, kind, limit_ms, step, address);
	if (event)
		rdma_ack_cm_event(event);
	return event != NULL;
}

static bool resolve(struct link *link, const struct options *options)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *found;
	if (rdma_getaddrinfo(options->address, options->port, &hints, &found))
		return failed("find %s port %s: %s; give the address of an RDMA interface of the server", options->address,
			      options->port, strerror(errno));
	struct rdma_addrinfo *own = NULL;
	struct rdma_addrinfo passive = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP };
	if (options->bind && rdma_getaddrinfo(options->bind, NULL, &passive, &own)) {
		rdma_freeaddrinfo(found);
		return failed("find --bind %s: %s; give an address of this host", options->bind, strerror(errno));
	}
	int outcome = rdma_resolve_addr(link->id, own ? own->ai_src_addr : NULL, found->ai_dst_addr, CONNECT_MS);
	int error = errno;
	rdma_freeaddrinfo(found);
	if (own)
		rdma_freeaddrinfo(own);
	if (outcome)
		return failed("find an RDMA device that leads to %s: %s; `ibv_devices` lists the devices", options->address,
			      strerror(error));
	if (!pass_event(link, RDMA_CM_EVENT_ADDR_RESOLVED, CONNECT_MS, "resolve", options->address))
		return false;
	if (rdma_resolve_route(link->id, CONNECT_MS))
		return failed("find a route to %s: %s", options->address, strerror(errno));
	return pass_event(link, RDMA_CM_EVENT_ROUTE_RESOLVED, CONNECT_MS, "find a route to", options->address);
}
