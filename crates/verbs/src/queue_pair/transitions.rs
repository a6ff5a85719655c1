//! State transitions with their required and optional attributes. There is one table for each
//! transport.

use super::modify::AttributeMask as Mask;
use crate::attributes::QueuePairState as State;
use crate::services::QueuePairType as Service;
use crate::transport::Transport;

/// The attributes that a transition requires, and those that it also allows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Attributes {
    pub(super) required: Mask,
    pub(super) optional: Mask,
}

/// Returns the attributes of a transition. Returns `None` if the transition does not exist.
pub(super) fn attributes(
    transport: Transport,
    service: Service,
    from: State,
    to: State,
) -> Option<Attributes> {
    match transport {
        Transport::InfiniBand => of_infiniband(service, from, to),
        Transport::Iwarp => of_iwarp(from, to),
    }
}

/// Returns the attributes of a transition of iWARP, as in the kernel's software adapter.
///
/// No transition requires an attribute, because the connection manager negotiates with the peer
/// everything that InfiniBand has in attributes. In INIT, the partition key index and the port are
/// allowed too, because programs that know InfiniBand only set them. iWARP has no SQD and no SQE.
///
/// Programs that create their queue pairs themselves (`rping -q`) make the transition to INIT after
/// the connection manager has connected the queue pair. The kernel's software adapter accepts it
/// then, and the queue pair stays in RTS.
fn of_iwarp(from: State, to: State) -> Option<Attributes> {
    let optional = match (from, to) {
        (_, State::Reset | State::Error) => Mask::NONE,
        (State::Reset | State::Init | State::ReadyToSend, State::Init) => {
            Mask::ACCESS | Mask::PARTITION_KEY | Mask::PORT
        }
        (State::Init, State::ReadyToReceive)
        | (State::ReadyToReceive | State::ReadyToSend, State::ReadyToSend) => Mask::ACCESS,
        _ => return None,
    };
    Some(Attributes { required: Mask::NONE, optional })
}

/// Returns the attributes of a transition of InfiniBand (IBA volume 1, table 93 and following).
fn of_infiniband(service: Service, from: State, to: State) -> Option<Attributes> {
    let of = |required, optional| Some(Attributes { required, optional });
    match (from, to) {
        (_, State::Reset | State::Error) => of(Mask::NONE, Mask::NONE),
        (State::Reset, State::Init) => of(of_init(service), Mask::NONE),
        (State::Init, State::Init) => of(Mask::NONE, of_init(service)),
        (State::Init, State::ReadyToReceive) => {
            let (required, optional) = of_ready_to_receive(service);
            of(required, optional)
        }
        (State::ReadyToReceive, State::ReadyToSend) => {
            of(of_ready_to_send(service), of_sending(service))
        }
        (State::ReadyToSend | State::SendQueueDrained, State::ReadyToSend) => {
            of(Mask::NONE, of_sending(service))
        }
        (State::SendQueueError, State::ReadyToSend) => match service {
            Service::Reliable => None,
            Service::Unreliable => of(Mask::NONE, Mask::CURRENT_STATE | Mask::ACCESS),
            Service::Datagram => of(Mask::NONE, Mask::CURRENT_STATE | Mask::QUEUE_KEY),
        },
        (State::ReadyToSend, State::SendQueueDrained) => of(Mask::NONE, Mask::DRAINED_EVENT),
        (State::SendQueueDrained, State::SendQueueDrained) => of(Mask::NONE, of_drained(service)),
        _ => None,
    }
}

fn of_init(service: Service) -> Mask {
    let common = Mask::PARTITION_KEY | Mask::PORT;
    match service {
        Service::Reliable | Service::Unreliable => common | Mask::ACCESS,
        Service::Datagram => common | Mask::QUEUE_KEY,
    }
}

fn of_ready_to_receive(service: Service) -> (Mask, Mask) {
    let connected = Mask::PATH | Mask::PATH_MTU | Mask::DESTINATION | Mask::RECEIVE_PSN;
    let optional = Mask::ALTERNATE_PATH | Mask::ACCESS | Mask::PARTITION_KEY;
    match service {
        Service::Reliable => (connected | Mask::PEER_READS_MAX | Mask::NOT_READY_TIMER, optional),
        Service::Unreliable => (connected, optional),
        Service::Datagram => (Mask::NONE, Mask::PARTITION_KEY | Mask::QUEUE_KEY),
    }
}

fn of_ready_to_send(service: Service) -> Mask {
    match service {
        Service::Reliable => {
            Mask::TIMEOUT
                | Mask::RETRIES
                | Mask::NOT_READY_RETRIES
                | Mask::SEND_PSN
                | Mask::READS_MAX
        }
        Service::Unreliable | Service::Datagram => Mask::SEND_PSN,
    }
}

/// Returns the attributes that a program may set when the queue pair enters RTS and while it is in
/// RTS.
fn of_sending(service: Service) -> Mask {
    let connected =
        Mask::CURRENT_STATE | Mask::ALTERNATE_PATH | Mask::ACCESS | Mask::PATH_MIGRATION;
    match service {
        Service::Reliable => connected | Mask::NOT_READY_TIMER,
        Service::Unreliable => connected,
        Service::Datagram => Mask::CURRENT_STATE | Mask::QUEUE_KEY,
    }
}

fn of_drained(service: Service) -> Mask {
    let connected = Mask::PATH
        | Mask::ALTERNATE_PATH
        | Mask::ACCESS
        | Mask::PARTITION_KEY
        | Mask::PATH_MIGRATION;
    match service {
        Service::Reliable => {
            connected
                | Mask::PORT
                | Mask::TIMEOUT
                | Mask::RETRIES
                | Mask::NOT_READY_RETRIES
                | Mask::READS_MAX
                | Mask::PEER_READS_MAX
                | Mask::NOT_READY_TIMER
        }
        Service::Unreliable => connected,
        Service::Datagram => Mask::PARTITION_KEY | Mask::QUEUE_KEY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transitions_of_iwarp_need_nothing_and_rtr_and_rts_take_access_flags_at_most() {
        for from in State::ALL {
            for to in State::ALL {
                let Some(found) = attributes(Transport::Iwarp, Service::Reliable, from, to) else {
                    continue;
                };
                assert_eq!(found.required, Mask::NONE, "{from:?} {to:?}");
                if matches!(to, State::ReadyToReceive | State::ReadyToSend) {
                    assert_eq!(found.optional, Mask::ACCESS, "{from:?} {to:?}");
                }
            }
        }
    }

    #[test]
    fn iwarp_has_the_transitions_of_infiniband_without_sqd_and_sqe_and_ignores_init_in_rts() {
        let is_missing = |state| matches!(state, State::SendQueueDrained | State::SendQueueError);
        for from in State::ALL {
            for to in State::ALL {
                let exists =
                    |transport| attributes(transport, Service::Reliable, from, to).is_some();
                let is_end = matches!(to, State::Reset | State::Error);
                let is_ignored = (from, to) == (State::ReadyToSend, State::Init);
                let expected = exists(Transport::InfiniBand)
                    && (is_end || !is_missing(from) && !is_missing(to))
                    || is_ignored;
                assert_eq!(exists(Transport::Iwarp), expected, "{from:?} {to:?}");
            }
        }
    }

    #[test]
    fn reliable_connections_of_infiniband_need_the_path_and_the_numbers_of_the_peer() {
        let required = |from, to| {
            attributes(Transport::InfiniBand, Service::Reliable, from, to).map(|it| it.required.0)
        };
        assert_eq!(required(State::Reset, State::Init), Some(0x38));
        assert_eq!(required(State::Init, State::ReadyToReceive), Some(0x12_9180));
        assert_eq!(required(State::ReadyToReceive, State::ReadyToSend), Some(0x1_2e00));
    }
}
