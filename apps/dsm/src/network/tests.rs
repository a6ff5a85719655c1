use dsm_protocol::Config;
use dsm_protocol::Layout;
use ethernot::{Buffer, ConnectOptions, Rights};

use super::*;

/// A rank with its own endpoint in this process.
struct Place {
    endpoint: Endpoint,
    network: Network,
    memory: PeerMemory,
    _control: MemoryRegion,
}

impl Place {
    /// Makes rank `rank` of three, with a queue of so many completions.
    fn new(rank: u8, completions: usize) -> Self {
        let endpoint = Endpoint::bind("127.0.0.1:0").unwrap();
        let layout = Layout::new(3, 1, Config::new(Rank(0), 3, 1).log_entries);
        let control = Buffer::new(layout.bytes());
        let rights = Rights::ALL;
        let region = endpoint.register(Arc::clone(&control), rights).unwrap();
        let frames = Arc::new(endpoint.register(Buffer::new(4096), rights).unwrap());
        let queue = Arc::new(CompletionQueue::new(completions));
        let memory =
            PeerMemory { frames: frames.remote(), control: region.remote(), masters: None };
        // SAFETY: the length is 0, so no byte is used.
        let local = unsafe { Local::new(std::ptr::null_mut(), 0, control, None) };
        let network =
            Network::new((Rank(rank), 3), &endpoint, &queue, &frames, None, (local, None)).unwrap();
        Self { endpoint, network, memory, _control: region }
    }

    /// Connects to another rank, which is in this process.
    fn connect(&mut self, rank: usize, peer: &mut Self) {
        let listener = peer.endpoint.listen(rank as u32).unwrap();
        let address = peer.endpoint.local_addresses().unwrap()[0];
        let options = |network: &Network| {
            ConnectOptions::new().service(rank as u32).queue(Arc::clone(&network.queue))
        };
        let connecting = self.endpoint.start_connect(address, options(&self.network)).unwrap();
        let accepted = listener.accept(None).unwrap().accept_with(options(&peer.network)).unwrap();
        let connection = connecting.wait(None).unwrap();
        self.network.connect(rank, Arc::new(connection), peer.memory).unwrap();
        let me = self.network.me.index();
        peer.network.connect(me, Arc::new(accepted), self.memory).unwrap();
    }
}

#[test]
fn an_operation_is_posted_when_operations_for_another_peer_make_room() {
    // The receives of the connections take places of the queue, too.
    let room = 2 * RECEIVES + 4;
    let (mut first, mut second, mut third) =
        (Place::new(0, room), Place::new(1, room), Place::new(2, room));
    first.connect(1, &mut second);
    first.connect(2, &mut third);
    let read =
        Operation::Read { area: Area::Control, address: 0, length: 8, landing: Landing::Buffer };
    // If another thread is inside the engine, it takes more operations than the queue has room for.
    let mut count = 0;
    while first.network.peers[1].backlog.is_empty() {
        first.network.post(Rank(1), Ticket(count), false, &read);
        first.network.flush();
        count += 1;
    }
    first.network.post(Rank(2), Ticket(count), false, &read);
    first.network.flush();
    count += 1;
    let (mut done, mut bytes) = (Vec::new(), Vec::new());
    while (done.len() as u64) < count {
        while let Some(arrival) = first.network.poll(&mut bytes) {
            let Arrival::Completed { ticket, answer: Answer::Done } = arrival else {
                panic!("{arrival:?}")
            };
            done.push(ticket.0);
        }
        for place in [&first, &second, &third] {
            place.endpoint.drive().unwrap();
        }
        let _nothing = (second.network.poll(&mut bytes), third.network.poll(&mut bytes));
    }
    done.sort_unstable();
    assert_eq!(done, (0..count).collect::<Vec<_>>());
    assert!(first.network.is_idle());
}
