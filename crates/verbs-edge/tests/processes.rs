//! Tests of queue pairs in several processes. One process is killed, one exits, and one forks.

#[path = "../../ethernot/tests/copy/mod.rs"]
mod copy;
mod ends;

use std::process;

use ends::{End, Name, Program, with_links};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use verbs::{CompletionStatus, Error, Gid, SendOpcode};

const LINKS: [&str; 2] = ["udp:127.0.0.1", "udp:127.0.0.1,shm"];

/// Formats the identity of an end for another process.
fn name_as_text(name: Name) -> String {
    format!("{} {} {}", name.gid.address(), name.number, name.psn)
}

fn name_of(argument: &str) -> Name {
    let mut parts = argument.split(' ');
    let mut next = || parts.next().expect("three parts");
    let gid = Gid::of(next().parse().expect("an address"));
    let mut number = || next().parse().expect("a number");
    Name { gid, number: number(), psn: number() }
}

/// Runs in the second process. Connects an end to the first process, sends one message, and calls
/// `then`.
fn be_other(argument: &str, then: impl FnOnce(&Program, &End)) -> ! {
    let (links, peer) = argument.split_once('|').expect("two parts");
    let program = Program::new(&with_links(links));
    let end = program.end(77);
    end.connect(name_of(peer));
    // Print the address and the key of memory to which the peer may write.
    let (address, key) = (program.address(0), program.region.key());
    copy::say(&format!("{}|{address}|{key}", name_as_text(end.name())));
    end.send(1, program.piece(0, 8));
    end.succeed(1);
    then(&program, &end);
    loop {
        end.poll();
    }
}

/// Starts a second process and connects to it. Returns the process, this process's program and end,
/// and a write to memory of the second process.
fn with_other(name: &str, links: &str) -> (process::Child, Program, End, SendOpcode) {
    let program = Program::new(&with_links(links));
    let end = program.end(33);
    let argument = format!("{links}|{}", name_as_text(end.name()));
    let (child, said) = copy::start(name, &argument);
    let mut parts = said.split('|');
    let mut next = || parts.next().expect("three parts");
    let peer = name_of(next());
    let address = next().parse().expect("a number");
    let key = next().parse().expect("a number");
    end.init();
    end.receive(1, &[program.piece(0, 64)]);
    end.be_ready_to_receive(peer);
    end.be_ready_to_send();
    end.succeed(1);
    (child, program, end, SendOpcode::Write { address, key, immediate: None })
}

/// Checks that the oldest outstanding send fails because the peer is gone, and that all later sends
/// are flushed.
fn assert_lost(end: &End, posted: usize) {
    let done = end.next(posted);
    let failed = done.iter().position(|done| done.status != CompletionStatus::Success);
    let failed = failed.expect("the peer is gone");
    assert_eq!(done[failed].status, CompletionStatus::TransportRetryExceeded);
    let rest = &done[failed + 1..];
    assert!(rest.iter().all(|done| done.status == CompletionStatus::Flushed), "{rest:?}");
}

#[test]
fn a_peer_killed_during_a_transfer_is_detected() {
    let name = "a_peer_killed_during_a_transfer_is_detected";
    if let Some(argument) = copy::argument() {
        be_other(&argument, |_, _| ());
    }
    for links in LINKS {
        let (child, program, end, write) = with_other(name, links);
        end.receive(2, &[program.piece(0, 64)]);
        for id in 0..500 {
            end.post(id, write, &[program.piece(0, 1 << 16)]);
        }
        copy::end(child, Signal::SIGKILL);
        assert_lost(&end, 501);
    }
}

#[test]
fn later_sends_detect_a_killed_peer() {
    let name = "later_sends_detect_a_killed_peer";
    if let Some(argument) = copy::argument() {
        be_other(&argument, |_, _| ());
    }
    for links in LINKS {
        let (child, program, end, write) = with_other(name, links);
        copy::end(child, Signal::SIGKILL);
        end.post(1, write, &[program.piece(0, 8)]);
        end.post(2, write, &[program.piece(0, 8)]);
        assert_lost(&end, 2);
    }
}

#[test]
fn a_process_that_exits_during_a_transfer_notifies_its_peers() {
    let name = "a_process_that_exits_during_a_transfer_notifies_its_peers";
    if let Some(argument) = copy::argument() {
        be_other(&argument, |_, _| process::exit(0));
    }
    for links in LINKS {
        let (mut child, program, end, write) = with_other(name, links);
        for id in 0..500 {
            end.post(id, write, &[program.piece(0, 1 << 16)]);
        }
        assert_lost(&end, 500);
        assert!(child.wait().expect("a child").success());
    }
}

#[test]
fn a_forked_child_opens_a_device_of_its_own() {
    let program = Program::new(&with_links(LINKS[1]));
    let end = program.end(5);
    end.connect(end.name());
    let works = |program: &Program, end: &End, id: u64| {
        let write = SendOpcode::Write {
            address: program.address(64),
            key: program.region.key(),
            immediate: None,
        };
        end.post(id, write, &[program.piece(0, 8)]);
        end.succeed(id);
    };
    works(&program, &end, 1);
    // SAFETY: the allocator works in a forked child, and the child exits without running the
    // parent's exit handlers.
    match unsafe { fork() }.expect("a child") {
        ForkResult::Child => {
            let gone = |result: Result<(), Error>| matches!(result, Err(Error::NoDevice(_)));
            let refused = gone(end.queue.poll(&mut []).map(drop))
                && gone(program.context.allocate_domain().map(drop))
                && gone(end.queue_pair.destroy());
            let own = Program::new(&with_links(LINKS[1]));
            let own_end = own.end(6);
            own_end.connect(own_end.name());
            works(&own, &own_end, 2);
            // SAFETY: this ends the child at once and runs no other code.
            unsafe { nix::libc::_exit(i32::from(!refused)) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).expect("a child"), WaitStatus::Exited(child, 0));
            works(&program, &end, 3);
        }
    }
}
