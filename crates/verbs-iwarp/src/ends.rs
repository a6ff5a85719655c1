//! The parameters of an end of a connection, as ids know them.

use rdma_cm::{End, Reply};
use verbs::{Gid, QueuePair, QueuePairType};

/// Returns the parameters of a peer, as the events of ids carry them. iWARP says only the numbers
/// of reads: `reads` are those that this end may have in flight, and that it answers.
pub(crate) const fn end_of(gid: Gid, number: u32, (reads_max, peer_reads_max): (u8, u8)) -> End {
    End {
        service: QueuePairType::Reliable,
        number,
        psn: 0,
        queue_key: 0,
        gid,
        responder_resources: reads_max,
        initiator_depth: peer_reads_max,
        retries: 7,
        not_ready_retries: 7,
        flow_control: false,
        is_shared: false,
        takes_over: true,
        not_ready_timer: 0,
    }
}

/// Returns the acceptance of a responder.
pub(crate) fn reply_of(queue_pair: &QueuePair, private_data: Vec<u8>, reads: (u8, u8)) -> Reply {
    Reply { end: end_of(Gid::default(), queue_pair.number(), reads), private_data }
}
