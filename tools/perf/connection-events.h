/*
 * The events of the connection manager: the requests of clients, and the end of a connection.
 *
 * The including file must define `struct link` with `cm`, `id` and `has_ended`, and
 * `refuse_as_busy`, which rejects a client that connects while another is served.
 */

static bool set_blocking(int file, bool is_blocking)
{
	int flags = fcntl(file, F_GETFL);
	flags = is_blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK;
	return fcntl(file, F_SETFL, flags) == 0 || failed("set a descriptor: %s", strerror(errno));
}

/* Prints why a request has failed; returns false. */
static bool explain_failure(enum ibv_wc_status status)
{
	return failed("the connection has failed: %s (status %d); did the peer end?", ibv_wc_status_str(status), status);
}

static void refuse_request(struct rdma_cm_event *request)
{
	struct rdma_cm_id *id = request->id;
	refuse_as_busy(id);
	rdma_ack_cm_event(request);
	rdma_destroy_id(id);
}

/* Returns whether an event concerns another connection. Such an event is the request of another
   client, which is rejected, or the end of an earlier connection. It is acknowledged. */
static bool is_of_another(struct link *link, struct rdma_cm_event *event)
{
	if (event->id == link->id)
		return false;
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST)
		refuse_request(event);
	else
		rdma_ack_cm_event(event);
	return true;
}

/* Handles and acknowledges an event of the connection. */
static void take_event(struct link *link, struct rdma_cm_event *event)
{
	link->has_ended |= event->event == RDMA_CM_EVENT_DISCONNECTED || event->event == RDMA_CM_EVENT_DEVICE_REMOVAL;
	rdma_ack_cm_event(event);
}

/* Handles the events of the connection until it has ended. Later events stay in the channel, because
   the request of the next client may follow the end at once. */
static void take_events(struct link *link)
{
	struct rdma_cm_event *event;
	while (!link->has_ended && rdma_get_cm_event(link->cm, &event) == 0)
		if (!is_of_another(link, event))
			take_event(link, event);
}

/* Waits until the client disconnects, which it does after it has received the end. A dead client
   delays the server by at most 2 s. Returns the request of the next client if it arrives meanwhile:
   the end of a connection may be late, because its frames may be lost. */
static struct rdma_cm_event *await_disconnection(struct link *link)
{
	struct rdma_cm_event *next = NULL;
	double end = now_s() + 2;
	while (!link->has_ended && now_s() < end && !is_interrupted) {
		struct rdma_cm_event *event;
		struct pollfd file = { link->cm->fd, POLLIN, 0 };
		if (poll(&file, 1, 100) != 1 || rdma_get_cm_event(link->cm, &event))
			continue;
		if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST && !next)
			next = event;
		else if (!is_of_another(link, event))
			take_event(link, event);
	}
	return next;
}

/* Waits for the request of a client. */
static struct rdma_cm_event *await_client(struct link *link)
{
	struct rdma_cm_event *event;
	set_blocking(link->cm->fd, true);
	for (;;) {
		if (rdma_get_cm_event(link->cm, &event)) {
			if (!is_interrupted)
				failed("wait for a client: %s", strerror(errno));
			return NULL;
		}
		if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST)
			return event;
		/* The disconnect event of an earlier connection may arrive late. */
		rdma_ack_cm_event(event);
	}
}
