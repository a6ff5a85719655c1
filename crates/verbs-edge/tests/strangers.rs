//! Tests with strangers: hosts that send well-formed greetings with false contents (protocol.md
//! §10.2). No end may accept a stranger as its peer.

mod ends;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use delivery::{Instant, LinkId};
use ends::{End, Name, Program, loopback};
use engine::{ConnectRequest, ConnectionHandle, Engine, Event, Terms};
use link::{Link, Slots, UdpConfig};
use mem::{MemoryAccess, ProtectionDomain, RegionId};
use runtime::{Hooks, Runtime, RuntimeConfig};
use verbs::{Gid, QueuePairAttributes, SendFlags, SendOpcode};
use wire_edge::{PeerAddr, QueuePairNumber};
use work::{CompletionQueue, Queues, Receive};

const SERVICE: u32 = 0x5645_5242;
/// First packet numbers of the program's queue pair and of its peer.
const OWN_PSN: u32 = 0x11;
const PEER_PSN: u32 = 0x22;

/// Addresses of the program's queue pair, of its peer, and of another host.
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9));
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 5));

/// Contents of a greeting, and whether the connection is a queue pair.
#[derive(Clone, Copy, Debug)]
struct Said {
    kind: u8,
    destination: Name,
    source: Name,
    receive_psn: u32,
    send_psn: Option<u32>,
    has_feature: bool,
}

impl Said {
    /// Returns the greeting that the program expects from its peer.
    fn truth(peer: Name, program: Name) -> Self {
        Self {
            kind: 0,
            destination: program,
            source: peer,
            receive_psn: OWN_PSN,
            send_psn: Some(PEER_PSN),
            has_feature: true,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = b"EVQP".to_vec();
        bytes.extend([1, self.kind, 12, u8::from(self.send_psn.is_some())]);
        let send_psn = self.send_psn.unwrap_or(0);
        let words =
            [1, self.destination.number, self.source.number, self.receive_psn, send_psn, 0_u32];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(self.source.gid.0);
        bytes.extend(self.destination.gid.0);
        bytes
    }

    fn terms(&self) -> Terms {
        Terms::default().queue_pair(self.has_feature)
    }
}

/// Slot (UDP port) for the next stranger.
static SLOT: AtomicU16 = AtomicU16::new(0x500);

/// Answers of a stranger to consecutive requests. If there are more requests than answers, the
/// stranger repeats the last answer.
type Answers = Vec<Said>;

#[derive(Default)]
struct Seen {
    /// Number of answered requests.
    answered: usize,
    /// The connection that was established last, and the number of answers that the stranger had
    /// sent until then.
    established: Option<(ConnectionHandle, usize)>,
    /// Number of connections that were rejected or have ended.
    closed: usize,
}

struct Shared {
    answers: Answers,
    queue: Arc<CompletionQueue>,
    seen: Mutex<Seen>,
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queues(&self) -> Queues {
        Queues::of_queue_pair(Arc::clone(&self.queue), Arc::clone(&self.queue))
    }
}

struct Listening(Arc<Shared>);

impl Hooks for Listening {
    fn on_event(&self, engine: &mut Engine, memory: &MemoryAccess<'_>, now: Instant, event: Event) {
        let mut seen = self.0.seen();
        match event {
            Event::Requested { connection, .. } => {
                let answers = &self.0.answers;
                let Some(answer) = answers.get(seen.answered).or(answers.last()) else {
                    return engine.reject(connection, &[1]).expect("the program asks");
                };
                seen.answered += 1;
                let (domain, terms) = (ProtectionDomain::NONE, answer.terms());
                let bytes = answer.encode();
                let queues = self.0.queues();
                let accepted = engine.accept_under(now, connection, domain, queues, &terms, &bytes);
                accepted.expect("the program asks");
                receive(engine, memory, connection);
            }
            Event::Established { connection, .. } => {
                seen.established = Some((connection, seen.answered));
            }
            Event::Closed { .. } => seen.closed += 1,
            _ => {}
        }
    }
}

/// Posts a receive without memory, for an empty message.
fn receive(engine: &mut Engine, memory: &MemoryAccess<'_>, connection: ConnectionHandle) {
    let nothing = Receive { region: RegionId::NONE, offset: 0, length: 0, context: 1 };
    engine.post_receive(memory, connection, nothing).expect("there is room");
}

/// A host that uses the engine's protocol. Depending on the test, it is the program's peer or a
/// stranger.
struct Stranger {
    /// The true identity of the host.
    name: Name,
    shared: Arc<Shared>,
    runtime: Runtime,
}

impl Stranger {
    fn new(ip: IpAddr, answers: impl FnOnce(Name) -> Answers) -> Self {
        // Give each stranger a different slot, because a queue pair of the previous test may still
        // send requests to the previous slot.
        let wanted = SLOT.fetch_add(1, Ordering::Relaxed);
        let claimed = Slots::default().claim(&[ip], wanted, &UdpConfig::default());
        let claimed = claimed.expect("a slot of loopback");
        let number = QueuePairNumber::at(claimed.slot, 7).expect("a number").get();
        let name = Name { gid: Gid::of(ip), number, psn: PEER_PSN };
        let queue = Arc::new(CompletionQueue::new(16));
        let shared = Shared { answers: answers(name), queue, seen: Mutex::default() };
        let shared = Arc::new(shared);
        let links = claimed.links.into_iter().map(|link| Box::new(link) as Box<dyn Link>).collect();
        let config = RuntimeConfig::from_entropy().expect("there is entropy");
        let hooks = Box::new(Listening(Arc::clone(&shared)));
        let runtime = Runtime::start(config, links, hooks).expect("it starts");
        runtime.control(|engine, _, _| engine.listen(SERVICE)).expect("not forked");
        Self { name, shared, runtime }
    }

    /// Sends a request to the program's queue pair.
    fn ask(&self, program: Name, said: Said) {
        let number = QueuePairNumber::new(program.number).expect("a number");
        let to = PeerAddr::from(Slots::default().address_of(HERE, number));
        let queues = self.shared.queues();
        let ask = move |engine: &mut Engine, memory: &MemoryAccess<'_>, now| {
            let request = ConnectRequest {
                paths: vec![(LinkId(0), to)],
                service: SERVICE,
                private_data: said.encode(),
                domain: ProtectionDomain::NONE,
                queues,
                terms: said.terms(),
            };
            let connection = engine.connect(now, request).expect("there is a link");
            receive(engine, memory, connection);
        };
        self.runtime.control(ask).expect("not forked");
    }

    /// Returns whether a message has arrived successfully.
    fn has_message(&self) -> bool {
        while let Some(completion) = self.shared.queue.poll() {
            if completion.result.is_ok() {
                return true;
            }
        }
        false
    }
}

/// Polls the program's end until `is_so` returns true, but at most 20 000 times. Fails if a
/// completion arrives, because a message was then sent to a stranger.
fn drive(end: &End, is_so: impl Fn() -> bool) {
    for _ in 0..20_000 {
        if is_so() {
            return;
        }
        let done = end.poll();
        assert!(done.is_empty(), "a message went to a stranger: {done:?}");
        std::thread::yield_now();
    }
}

/// Moves the queue pair from RESET to RTS. Its timeouts give the peer half a minute to send its
/// request, because a busy host may be slow.
fn connect(end: &End, peer: Name) {
    end.init();
    end.be_ready_to_receive(peer);
    let timers = QueuePairAttributes { timeout: 20, retries: 7, ..Default::default() };
    end.be_ready_to_send_with(QueuePairAttributes { not_ready_retries: 7, ..timers });
}

/// Sends an empty message.
fn send(end: &End) {
    let flags = SendFlags { signalled: true, ..SendFlags::default() };
    end.post_with(7, SendOpcode::Send { immediate: None }, &[], flags);
}

/// A stranger at `ip` sends the request that `lie` returns, and then the peer sends a true request.
/// Checks that the program's message reaches the peer and not the stranger.
fn ask_with_a_lie(ip: IpAddr, lie: impl FnOnce(Said) -> Said) {
    let here = Program::new(&loopback());
    let end = here.end(OWN_PSN);
    let peer = Stranger::new(THERE, |_| Vec::new());
    connect(&end, peer.name);
    send(&end);
    let stranger = Stranger::new(ip, |_| Vec::new());
    let lie = lie(Said::truth(peer.name, end.name()));
    stranger.ask(end.name(), lie);
    drive(&end, || stranger.shared.seen().closed > 0);
    assert!(!stranger.has_message(), "{lie:?}");
    peer.ask(end.name(), Said::truth(peer.name, end.name()));
    end.succeed(7);
    assert!(peer.has_message() && !stranger.has_message(), "{lie:?}");
}

/// Answers the program's request first with the greeting that `lie` returns, and then with the true
/// greeting. Checks that the program accepts only the true greeting.
fn answer_with_a_lie(lie: impl FnOnce(Said) -> Said) {
    let here = Program::new(&loopback());
    let end = here.end(OWN_PSN);
    let peer = Stranger::new(THERE, |name| {
        let truth = Said::truth(name, end.name());
        vec![lie(truth), truth]
    });
    connect(&end, peer.name);
    send(&end);
    end.succeed(7);
    assert!(peer.has_message());
    let taken = peer.shared.seen().established.map(|(_, answers)| answers);
    assert_eq!(taken, Some(2), "the queue pair accepted a forged answer");
}

//= protocol.md: verbs.3
#[test]
fn the_claimed_address_of_a_greeting_is_ignored() {
    ask_with_a_lie(ELSEWHERE, |truth| truth);
    ask_with_a_lie(HERE, |truth| truth);
}

//= protocol.md: verbs.3
#[test]
fn the_source_address_of_a_greeting_counts_whatever_it_claims() {
    let here = Program::new(&loopback());
    let end = here.end(OWN_PSN);
    let peer = Stranger::new(THERE, |_| Vec::new());
    connect(&end, peer.name);
    send(&end);
    let source = Name { gid: Gid::of(ELSEWHERE), ..peer.name };
    peer.ask(end.name(), Said { source, ..Said::truth(peer.name, end.name()) });
    end.succeed(7);
    assert!(peer.has_message());
}

//= protocol.md: verbs.3
#[test]
fn another_queue_pair_number_at_the_peers_address_is_not_the_peer() {
    let other = |truth: Said| Name { number: truth.source.number ^ 1, ..truth.source };
    ask_with_a_lie(THERE, |truth| Said { source: other(truth), ..truth });
    answer_with_a_lie(|truth| Said { source: other(truth), ..truth });
}

//= protocol.md: verbs.3
#[test]
fn a_queue_pair_of_another_type_is_not_the_peer() {
    ask_with_a_lie(THERE, |truth| Said { kind: 1, ..truth });
    answer_with_a_lie(|truth| Said { kind: 1, ..truth });
}

//= protocol.md: verbs.3
#[test]
fn a_queue_pair_with_other_packet_numbers_is_not_the_peer() {
    ask_with_a_lie(THERE, |truth| Said { receive_psn: OWN_PSN + 1, ..truth });
    ask_with_a_lie(THERE, |truth| Said { send_psn: Some(PEER_PSN + 1), ..truth });
    ask_with_a_lie(THERE, |truth| Said { receive_psn: OWN_PSN + 1, send_psn: None, ..truth });
    answer_with_a_lie(|truth| Said { receive_psn: OWN_PSN + 1, ..truth });
    answer_with_a_lie(|truth| Said { send_psn: Some(PEER_PSN + 1), ..truth });
}

//= protocol.md: verbs.3
#[test]
fn an_end_without_the_queue_pair_feature_is_not_the_peer() {
    ask_with_a_lie(THERE, |truth| Said { has_feature: false, ..truth });
    answer_with_a_lie(|truth| Said { has_feature: false, ..truth });
}

//= protocol.md: verbs.3
#[test]
fn an_answer_to_another_queue_pair_is_not_the_peer() {
    let other = |truth: Said| Name { number: truth.destination.number ^ 1, ..truth.destination };
    answer_with_a_lie(|truth| Said { destination: other(truth), ..truth });
}

/// Neither the program's queue pair, which is only ready to receive, nor the stranger has announced
/// its first packet number. So the program has no packet number to compare.
//= protocol.md: verbs.3
#[test]
fn a_greeting_without_a_packet_number_waits_until_one_can_be_compared() {
    for (receive_psn, is_peer) in [(OWN_PSN + 1, false), (OWN_PSN, true)] {
        let here = Program::new(&loopback());
        let end = here.end(OWN_PSN);
        let stranger = Stranger::new(THERE, |_| Vec::new());
        end.init();
        end.be_ready_to_receive(stranger.name);
        let truth = Said::truth(stranger.name, end.name());
        stranger.ask(end.name(), Said { receive_psn, send_psn: None, ..truth });
        drive(&end, || stranger.shared.seen().established.is_some());
        assert!(stranger.shared.seen().established.is_none());
        end.be_ready_to_send();
        if is_peer {
            send(&end);
            end.succeed(7);
        } else {
            while stranger.shared.seen().closed == 0 {
                assert!(end.poll().is_empty());
            }
        }
        assert_eq!(stranger.has_message(), is_peer);
    }
}

/// The program's queue pair is not ready when the peer sends its request. After that, a stranger
/// sends a request and claims to be the same peer.
//= protocol.md: verbs.6
#[test]
fn a_stranger_does_not_replace_the_request_of_the_peer() {
    let here = Program::new(&loopback());
    let end = here.end(OWN_PSN);
    let peer = Stranger::new(THERE, |_| Vec::new());
    let stranger = Stranger::new(ELSEWHERE, |_| Vec::new());
    let truth = Said::truth(peer.name, end.name());
    peer.ask(end.name(), truth);
    drive(&end, || false);
    stranger.ask(end.name(), truth);
    drive(&end, || peer.shared.seen().closed > 0);
    assert_eq!(peer.shared.seen().closed, 0, "its request was refused");
    connect(&end, peer.name);
    send(&end);
    end.succeed(7);
    assert!(peer.has_message() && !stranger.has_message());
}
