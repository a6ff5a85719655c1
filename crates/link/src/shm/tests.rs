use std::os::fd::RawFd;
use std::sync::Arc;

use mem::{Buffer, MemoryTable, PayloadSlice, Rights, TableLimits};

use super::*;
use crate::shm::ring::LentPlace;
use crate::shm::socket::{connect, create_memory, greet};

#[test]
fn frames_go_both_ways_whichever_end_connected() {
    let (mut a, mut b) = (ShmLink::open().unwrap(), ShmLink::open().unwrap());
    send(&mut a, &b, b"from a");
    assert_eq!(received(&mut b), [b"from a".to_vec()]);
    send(&mut b, &a, b"from b");
    assert_eq!(received(&mut a), [b"from b".to_vec()]);
    assert_eq!((a.channels(), b.channels()), (1, 1), "one memory serves both directions");
}

#[test]
fn both_ends_may_connect_at_the_same_time() {
    let (mut a, mut b) = (ShmLink::open().unwrap(), ShmLink::open().unwrap());
    send(&mut a, &b, b"from a");
    send(&mut b, &a, b"from b");
    assert_eq!(received(&mut b), [b"from a".to_vec()]);
    assert_eq!(received(&mut a), [b"from b".to_vec()]);
    for round in 0..100_u8 {
        send(&mut a, &b, &[round]);
        send(&mut b, &a, &[round]);
        assert_eq!(received(&mut b), [vec![round]]);
        assert_eq!(received(&mut a), [vec![round]]);
    }
    assert!(a.channels() <= 2 && b.channels() <= 2);
}

#[test]
fn the_end_of_a_peer_is_reported_after_its_last_frame() {
    let (mut a, mut b) = (ShmLink::open().unwrap(), ShmLink::open().unwrap());
    let address = a.caps().local;
    send(&mut a, &b, b"last words");
    assert!(b.poll_event().is_none());
    b.attend();
    drop(a);
    assert_eq!(received(&mut b), [b"last words".to_vec()]);
    let events: Vec<_> = std::iter::from_fn(|| b.poll_event()).collect();
    assert!(
        matches!(events[..], [LinkEvent::Refused(peer, Evidence::Local)] if peer == address),
        "{events:?}"
    );
    assert_eq!(b.channels(), 0, "its memory is given back");
    for _ in 0..3 {
        send_to(&mut b, address, b"anybody there?");
    }
    assert!(
        matches!(b.poll_event(), Some(LinkEvent::Refused(peer, Evidence::Local)) if peer == address)
    );
    assert!(b.poll_event().is_none(), "the event is reported once");
}

#[test]
fn the_descriptor_wakes_a_sleeping_link() {
    let (mut a, mut b) = (ShmLink::open().unwrap(), ShmLink::open().unwrap());
    send(&mut a, &b, b"x");
    received(&mut b);
    let calls = a.statistics().send_calls;
    send(&mut a, &b, b"x");
    received(&mut b);
    // With the first frame of a channel, the link sends a wake-up, because the other end may
    // already sleep.
    assert!(a.statistics().send_calls <= calls + 1);
    received(&mut b);
    for _ in 0..100 {
        assert!(b.prepare_sleep());
        assert!(!is_readable(&b));
        send(&mut a, &b, b"wake up");
        assert!(is_readable(&b), "a wakeup was lost");
        assert_eq!(received(&mut b).len(), 1);
        b.attend();
        let calls = a.statistics().send_calls;
        send(&mut a, &b, b"awake");
        assert_eq!(a.statistics().send_calls, calls, "no peer sleeps: no call");
        assert!(!b.prepare_sleep(), "a frame waits");
        assert_eq!(received(&mut b).len(), 1);
    }
}

#[test]
fn shrinkable_or_too_small_memory_is_refused() {
    let victim = ShmLink::open().unwrap();
    let mut victim = victim;
    let unsealed = memfd(ring::FILE_BYTES);
    let short = memfd(4096);
    seal(&short);
    let whole = memfd(ring::FILE_BYTES);
    seal(&whole);
    let file = OwnedFd::from(std::fs::File::open("/dev/zero").unwrap());
    for (memory, is_good) in [(unsealed, false), (short, false), (file, false), (whole, true)] {
        let (_, endpoint) = victim.caps().local.to_shared_memory().unwrap();
        let socket = connect(endpoint).unwrap();
        let greeting = Greeting { from: stranger(&victim), to: victim.caps().local };
        greet(socket.as_fd(), &greeting, memory.as_fd()).unwrap();
        victim.attend();
        assert_eq!(victim.channels() == 1, is_good);
    }
}

#[test]
fn greetings_for_another_endpoint_or_of_another_host_are_refused() {
    let mut victim = ShmLink::open().unwrap();
    let here = victim.caps().local;
    let elsewhere = PeerAddr::shared_memory(1, 2);
    for (from, to) in [(stranger(&victim), elsewhere), (elsewhere, here)] {
        let (_, endpoint) = here.to_shared_memory().unwrap();
        let socket = connect(endpoint).unwrap();
        let memory = create_memory().unwrap();
        greet(socket.as_fd(), &Greeting { from, to }, memory.as_fd()).unwrap();
        victim.attend();
        assert_eq!(victim.channels(), 0);
    }
    assert_eq!(victim.statistics().receive_discarded, 2);
    send_to(&mut victim, elsewhere, b"other hosts are not reached");
    assert_eq!(victim.statistics().send_unreachable, 1);
}

#[test]
fn silent_connected_peers_do_not_block_others() {
    let (mut a, mut b) = (ShmLink::open().unwrap(), ShmLink::open().unwrap());
    let (_, endpoint) = b.caps().local.to_shared_memory().unwrap();
    let _silent: Vec<_> = (0..3 * STRANGERS_MAX)
        .map(|_| {
            b.attend();
            connect(endpoint).unwrap()
        })
        .collect();
    b.attend();
    assert!(b.strangers.len() <= STRANGERS_MAX);
    send(&mut a, &b, b"hello");
    assert_eq!(received(&mut b), [b"hello".to_vec()]);
}

#[test]
fn a_full_ring_refuses_frames_and_loses_none() {
    let (mut a, mut b) = (ShmLink::open().unwrap(), ShmLink::open().unwrap());
    let payload = vec![9_u8; 30_000];
    let slice = PayloadSlice::at(payload.as_ptr(), 30_000);
    let mut batch = TxBatch::new(64, 64 * 8);
    batch.reset(b.caps().local);
    for index in 0..64_u64 {
        batch.header_mut().extend_from_slice(&index.to_le_bytes());
        batch.finish_frame(slice);
    }
    let sent = a.send(&batch).unwrap();
    assert!((4..16).contains(&sent), "{sent} frames of 30 kB in 256 KiB");
    assert_eq!(a.send(&batch).unwrap(), 0);
    assert!(a.prepare_sleep());
    let frames = received(&mut b);
    assert_eq!(frames.len(), sent);
    for (index, frame) in frames.iter().enumerate() {
        assert_eq!(frame[..8], (index as u64).to_le_bytes());
        assert!(frame[8..] == payload);
    }
    assert!(is_readable(&a), "the sender is notified of room");
    assert!(a.send(&batch).unwrap() > 0);
}

#[test]
fn payload_of_a_large_buffer_is_lent_and_that_of_other_memory_copied() {
    let (mut a, mut b) = (ShmLink::open().unwrap(), ShmLink::open().unwrap());
    let (_table, buffer) = registered(1 << 20);
    buffer.write(500_000, &[7; 10_000]);
    let here = vec![8; 10_000];
    let sources = [
        (at(&buffer, 500_000, 10_000), true, true),
        (at(&buffer, 500_000, 10_000), false, false),
        (at(&buffer, 500_000, 300), true, false),
        (PayloadSlice::at(here.as_ptr(), 10_000), true, false),
    ];
    for (payload, is_lasting, is_lent) in sources {
        assert_eq!(send_payload(&mut a, &b, payload, is_lasting).unwrap(), 1);
        // The receiver reads lent payload when the frame arrives. The sender copies other payload
        // when it sends.
        buffer.write(500_000, &[9; 10_000]);
        let frames = received(&mut b);
        let [frame] = frames.as_slice() else { panic!("{} frames", frames.len()) };
        let byte = if payload.start == here.as_ptr() { 8 } else { 7 + 2 * u8::from(is_lent) };
        assert_eq!(frame[..6], *b"header");
        assert!(frame[6..] == vec![byte; payload.len as usize], "{is_lasting} {is_lent}");
        buffer.write(500_000, &[7; 10_000]);
    }
}

#[test]
fn many_buffers_are_lent_and_returned_within_the_limit() {
    let (mut a, mut b) = (ShmLink::open().unwrap(), ShmLink::open().unwrap());
    for round in 0..200_u8 {
        let buffers = [registered(70_000), registered(80_000)];
        for (_table, buffer) in &buffers {
            buffer.write(1000, &[round; 5000]);
            assert_eq!(send_payload(&mut a, &b, at(buffer, 1000, 5000), true).unwrap(), 1);
        }
        let frames = received(&mut b);
        assert_eq!(frames.len(), 2, "round {round}");
        assert!(frames.iter().all(|frame| frame[6..] == [round; 5000]));
    }
    let lent = b.channels[0].borrower.memories();
    assert!(lent <= 4, "{lent} pieces of memory are kept mapped");
}

#[test]
fn lent_memory_stays_readable_after_its_buffer_is_dropped() {
    let (mut a, mut b) = (ShmLink::open().unwrap(), ShmLink::open().unwrap());
    let (table, buffer) = registered(100_000);
    buffer.write(0, &[3; 5000]);
    send_payload(&mut a, &b, at(&buffer, 0, 5000), true).unwrap();
    drop((buffer, table));
    assert!(received(&mut b)[0][6..] == [3; 5000]);
    a.attend();
    received(&mut b);
    assert_eq!(b.channels[0].borrower.memories(), 0, "it is given back");
}

#[test]
fn a_peer_that_cannot_map_lent_memory_gets_copies() {
    let (mut a, mut b) = (ShmLink::open().unwrap(), ShmLink::open().unwrap());
    send(&mut a, &b, b"hello");
    received(&mut b);
    // A file that can shrink must not be mapped.
    let file = memfd(1 << 20);
    let notice = Notice::Lent { memory: 5, len: 1 << 20 };
    assert!(socket::send_notice(a.channels[0].socket.as_fd(), notice, Some(file.as_fd())));
    received(&mut b);
    assert_eq!(b.channels[0].borrower.memories(), 0);
    a.attend();
    let (_table, buffer) = registered(100_000);
    buffer.write(0, &[3; 5000]);
    send_payload(&mut a, &b, at(&buffer, 0, 5000), true).unwrap();
    buffer.write(0, &[4; 5000]);
    assert!(received(&mut b)[0][6..] == [3; 5000], "it was copied when it was sent");
}

#[test]
fn memory_of_huge_pages_is_not_borrowed() {
    // Even if a file is sealed, the kernel can free its huge pages. A read of a freed page raises a
    // signal.
    let (mut a, mut b) = (ShmLink::open().unwrap(), ShmLink::open().unwrap());
    send(&mut a, &b, b"hello");
    received(&mut b);
    let Some(file) = memfd_of(2 << 20, libc::MFD_HUGETLB) else {
        println!("skipped: this kernel has no huge pages of 2 MiB");
        return;
    };
    seal(&file);
    assert!(!socket::is_unshrinkable(file.as_fd(), 2 << 20));
    let notice = Notice::Lent { memory: 5, len: 2 << 20 };
    assert!(socket::send_notice(a.channels[0].socket.as_fd(), notice, Some(file.as_fd())));
    received(&mut b);
    assert_eq!(b.channels[0].borrower.memories(), 0);
}

#[test]
fn a_peer_cannot_exhaust_the_address_space_of_a_process() {
    let (mut a, mut b) = (ShmLink::open().unwrap(), ShmLink::open().unwrap());
    send(&mut a, &b, b"hello");
    received(&mut b);
    // The files have no pages allocated.
    let len = 1_u64 << 38;
    for memory in 0..10 {
        let file = memfd(len as usize);
        seal(&file);
        let notice = Notice::Lent { memory, len };
        assert!(socket::send_notice(a.channels[0].socket.as_fd(), notice, Some(file.as_fd())));
    }
    received(&mut b);
    assert_eq!(b.channels[0].borrower.memories(), 2);
    let gone = Notice::Gone(0);
    assert!(socket::send_notice(a.channels[0].socket.as_fd(), gone, None));
    let file = memfd(len as usize);
    seal(&file);
    // If a peer lends memory under a number that is in use, the new memory replaces the earlier
    // memory.
    for _ in 0..3 {
        let notice = Notice::Lent { memory: 1, len };
        assert!(socket::send_notice(a.channels[0].socket.as_fd(), notice, Some(file.as_fd())));
    }
    received(&mut b);
    assert_eq!(b.channels[0].borrower.memories(), 1);
}

#[test]
fn frames_with_payload_outside_lent_memory_are_dropped() {
    let (mut a, mut b) = (ShmLink::open().unwrap(), ShmLink::open().unwrap());
    let (_table, buffer) = registered(100_000);
    send_payload(&mut a, &b, at(&buffer, 0, 5000), true).unwrap();
    assert_eq!(received(&mut b).len(), 1);
    let (memory, _) = mem::lendable(at(&buffer, 0, 1)).unwrap();
    let places = [(memory.number(), 95_001), (memory.number(), u64::MAX), (u64::MAX, 0)];
    for (memory, offset) in places {
        let lent = Some(LentPlace { memory, offset });
        let shape = Shape { headers: 1, payload: 5000, lent };
        let written = a.channels[0].writer.write(&shape, |_, _| true);
        assert_eq!(written, Written::Yes);
    }
    send(&mut a, &b, b"goes on");
    assert_eq!(received(&mut b), [b"goes on".to_vec()]);
    assert_eq!(b.statistics().receive_discarded, 3);
}

#[test]
fn unmapped_payload_is_an_error_and_earlier_frames_are_sent() {
    let (mut a, mut b) = (ShmLink::open().unwrap(), ShmLink::open().unwrap());
    let payload = vec![9_u8; 1000];
    let there = PayloadSlice::at(payload.as_ptr(), 1000);
    // The lowest page is never mapped, so this payload cannot be read.
    let gone = PayloadSlice::at(64 as *const u8, 1000);
    let mut batch = TxBatch::new(3, 64);
    batch.reset(b.caps().local);
    for payload in [there, gone, there] {
        batch.header_mut().extend_from_slice(b"header");
        batch.finish_lasting_frame(payload);
    }
    let error = a.send(&batch).unwrap_err();
    assert_eq!(PayloadUnmapped::from_io(&error).map(|unmapped| unmapped.frame), Some(1));
    assert_eq!(received(&mut b).len(), 1);
    assert_eq!(send_payload(&mut a, &b, there, true).unwrap(), 1);
    assert_eq!(received(&mut b).len(), 1, "the link goes on");
}

#[test]
fn deregistered_memory_is_returned_and_lent_again_when_reregistered() {
    let (mut a, mut b) = (ShmLink::open().unwrap(), ShmLink::open().unwrap());
    let table = MemoryTable::new(TableLimits::default(), [1, 2]);
    let (domain, buffer) = (table.allocate_domain(), Buffer::new(100_000));
    send(&mut a, &b, b"hello");
    received(&mut b);
    for round in 0..3_u8 {
        let region = table.register(domain, Arc::clone(&buffer), Rights::NONE).unwrap();
        buffer.write(0, &[round; 5000]);
        send_payload(&mut a, &b, at(&buffer, 0, 5000), true).unwrap();
        assert!(received(&mut b)[0][6..] == [round; 5000]);
        assert_eq!(b.channels[0].borrower.memories(), 1);
        table.deregister(region.id).unwrap();
        a.attend();
        received(&mut b);
        assert_eq!(b.channels[0].borrower.memories(), 0, "it is still mapped");
    }
}

/// Returns a buffer that can be lent, and the table in which it is registered.
fn registered(len: u64) -> (MemoryTable, Arc<Buffer>) {
    let table = MemoryTable::new(TableLimits::default(), [1, 2]);
    let buffer = Buffer::new(len);
    table.register(table.allocate_domain(), Arc::clone(&buffer), Rights::NONE).unwrap();
    (table, buffer)
}

fn at(buffer: &Buffer, offset: usize, len: u32) -> PayloadSlice<'static> {
    assert!(offset as u64 + u64::from(len) <= buffer.len());
    PayloadSlice::at(buffer.as_ptr().wrapping_add(offset).cast_const(), len)
}

fn send_payload(
    from: &mut ShmLink,
    to: &ShmLink,
    payload: PayloadSlice<'_>,
    is_lasting: bool,
) -> io::Result<usize> {
    let mut batch = TxBatch::new(1, 64);
    batch.reset(to.caps().local);
    batch.header_mut().extend_from_slice(b"header");
    if is_lasting {
        batch.finish_lasting_frame(payload);
    } else {
        batch.finish_frame(payload);
    }
    from.send(&batch)
}

fn stranger(victim: &ShmLink) -> PeerAddr {
    let (host, _) = victim.caps().local.to_shared_memory().unwrap();
    PeerAddr::shared_memory(host, 77)
}

fn send(from: &mut ShmLink, to: &ShmLink, bytes: &[u8]) {
    send_to(from, to.caps().local, bytes);
}

fn send_to(from: &mut ShmLink, to: PeerAddr, bytes: &[u8]) {
    let mut batch = TxBatch::new(1, 64);
    batch.reset(to);
    batch.header_mut().extend_from_slice(bytes);
    batch.finish_frame(PayloadSlice::EMPTY);
    assert_eq!(from.send(&batch).unwrap(), 1);
}

/// Handles socket events, then returns the waiting frames.
fn received(link: &mut ShmLink) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    link.attend();
    let now = Instant(1);
    let mut keep = |frame: RxFrame<'_>| {
        let mut whole = Vec::new();
        frame.append_to(&mut whole);
        frames.push(whole);
    };
    link.receive(now, 1000, &mut keep).unwrap();
    frames
}

fn is_readable(link: &ShmLink) -> bool {
    let [Some(fd), _] = link.wait_fds() else { panic!("a descriptor") };
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which outlives the call.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

fn memfd(bytes: usize) -> OwnedFd {
    memfd_of(bytes, 0).unwrap()
}

/// Creates a memory file; `None` if the kernel has no memory of this kind.
fn memfd_of(bytes: usize, kind: libc::c_uint) -> Option<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | kind;
    // SAFETY: the name is a literal that ends with 0, and the descriptor is new.
    unsafe {
        let file: RawFd = libc::memfd_create(c"test".as_ptr(), flags);
        if file < 0 {
            return None;
        }
        let file = OwnedFd::from_raw_fd(file);
        let size = bytes.cast_signed() as libc::off_t;
        (libc::ftruncate(file.as_raw_fd(), size) == 0).then_some(file)
    }
}

fn seal(file: &OwnedFd) {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: no memory is passed.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
}

/// Runs in its own process, because the limit of descriptors applies to all threads of a process.
#[test]
fn a_listener_without_free_descriptors_does_not_stay_ready() {
    const INNER: &str = "LINK_TEST_WITHOUT_DESCRIPTORS";
    if std::env::var_os(INNER).is_none() {
        let name = "shm::tests::a_listener_without_free_descriptors_does_not_stay_ready";
        let mut inner = std::process::Command::new(std::env::current_exe().unwrap());
        let ended = inner.args(["--exact", name, "--nocapture"]).env(INNER, "1").output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        return;
    }
    let mut link = ShmLink::open().unwrap();
    let (_, endpoint) = link.caps().local.to_shared_memory().unwrap();
    let is_ready = |link: &ShmLink| {
        let mut wanted =
            libc::pollfd { fd: link.epoll.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, with an open descriptor.
        unsafe { libc::poll(&raw mut wanted, 1, 0) == 1 }
    };
    let caller = connect(endpoint).unwrap();
    assert!(is_ready(&link), "a connection waits");
    // SAFETY: `limit` outlives both calls.
    let limit = |soft: u64| unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        let before = std::mem::replace(&mut limit.rlim_cur, soft);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        before
    };
    let before = limit(3);
    link.attend();
    assert!(
        link.strangers.is_empty() && !is_ready(&link),
        "the pending connection would wake the poll again and again"
    );
    limit(before);
    let another = connect(endpoint).unwrap();
    assert!(is_ready(&link));
    link.attend();
    assert_eq!(link.strangers.len(), 2, "the earlier connection was not accepted");
    drop((caller, another));
}
