//! State transitions with their required and optional attributes (IBA volume 1, table 93 and
//! following).

use super::modify::AttributeMask as Mask;
use crate::attributes::QueuePairState as State;
use crate::attributes::QueuePairType as Service;

/// The attributes that a transition requires, and those that it also allows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Attributes {
    pub(super) required: Mask,
    pub(super) optional: Mask,
}

/// Returns the attributes of a transition. Returns `None` if the transition does not exist.
pub(super) fn attributes(service: Service, from: State, to: State) -> Option<Attributes> {
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
