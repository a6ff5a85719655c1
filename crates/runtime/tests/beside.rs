//! Tests waits that end when the engine or a descriptor is ready.

mod pair;

use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use mem::{Buffer, Rights};
use pair::{Side, connect, small_write};
use runtime::{Doorbell, Interest, Mark, Others, Polling, RuntimeConfig, WaitError, Waited};

fn readable(stream: &UnixStream) -> libc::pollfd {
    libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN, revents: 0 }
}

fn with_polling(polling: Polling, progress_thread: bool) -> Side {
    let mut config = RuntimeConfig::from_entropy().expect("entropy");
    config.polling = polling;
    config.progress_thread = progress_thread;
    Side::with(config)
}

/// Creates three endpoints. The waiting threads of the first sleep at once, those of the second
/// sleep after a while, and those of the third always spin.
fn sides() -> [Side; 3] {
    let polls = [Polling::NEVER, Polling::ADAPTIVE, Polling::for_at_most(Duration::from_hours(1))];
    polls.map(|polling| with_polling(polling, true))
}

#[test]
fn a_ready_descriptor_ends_the_wait_and_reports_its_events() {
    for side in sides() {
        for others in [2, 20] {
            let pairs: Vec<_> =
                (0..others).map(|_| UnixStream::pair().expect("two sockets")).collect();
            let mut fds: Vec<_> = pairs.iter().map(|(ours, _)| readable(ours)).collect();
            let waited = thread::scope(|scope| {
                scope.spawn(|| (&pairs[1].1).write_all(b"x").expect("there is room"));
                let mut beside = Others::new(&mut fds);
                side.runtime.wait_beside(Interest::News, &mut beside, None, || false)
            });
            assert_eq!(waited.expect("not forked"), Waited::Descriptors(1));
            let ready: Vec<_> = fds.iter().map(|fd| fd.revents).collect();
            assert_eq!(ready[1], libc::POLLIN);
            assert_eq!(ready.iter().filter(|&&revents| revents != 0).count(), 1);
        }
    }
}

#[test]
fn an_engine_event_ends_the_wait_and_leaves_the_descriptors_unchanged() {
    for client in sides() {
        let server = Side::new(true);
        let connection = connect(&client, &server);
        let memory = server.runtime.memory();
        let region = memory.register(server.domain, Buffer::new(64), Rights::REMOTE_WRITE);
        let region = region.expect("it is registered");
        let (ours, _theirs) = UnixStream::pair().expect("two sockets");
        for _ in 0..50 {
            let write = small_write(region);
            let posted = client.runtime.post(connection, &client.queue, &write, Doorbell::Ring);
            posted.expect("it is posted");
            let (mut fds, mut done) = ([readable(&ours)], None);
            let waited = client.runtime.wait_beside(
                Interest::Completion(&client.queue),
                &mut Others::new(&mut fds),
                None,
                || {
                    done = done.take().or_else(|| client.queue.poll());
                    done.is_some()
                },
            );
            assert_eq!(waited.expect("not forked"), Waited::Ready);
            assert_eq!(fds[0].revents, 0);
        }
    }
}

#[test]
fn a_wait_with_a_zero_timeout_polls_once_and_any_other_times_out() {
    for side in sides() {
        let (ours, mut theirs) = UnixStream::pair().expect("two sockets");
        let mut fds = [readable(&ours)];
        let mut wait = |limit, ready| {
            let mut others = Others::new(&mut fds);
            let waited =
                side.runtime.wait_beside(Interest::News, &mut others, Some(limit), || ready);
            waited.expect("not forked")
        };
        assert_eq!(wait(Duration::ZERO, false), Waited::TimedOut);
        assert_eq!(wait(Duration::from_millis(2), false), Waited::TimedOut);
        theirs.write_all(b"x").expect("there is room");
        assert_eq!(wait(Duration::ZERO, false), Waited::Descriptors(1));
        assert_eq!(wait(Duration::ZERO, true), Waited::Ready);
    }
}

/// One of the threads sleeps on the links and its descriptors. The others sleep only on their
/// descriptors.
#[test]
fn each_thread_is_woken_by_signals_inside_and_outside_the_engine_and_by_its_descriptor() {
    const ROUNDS: u64 = 300;
    for side in sides() {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (ours, theirs) = UnixStream::pair().expect("two sockets");
                (Arc::new(Mark::new()), AtomicU64::new(0), AtomicU64::new(0), ours, theirs)
            })
            .collect();
        thread::scope(|scope| {
            for (mark, come, seen, ours, _) in &threads {
                let runtime = &side.runtime;
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        let mut fds = [readable(ours)];
                        let waited = runtime.wait_beside(
                            Interest::Mark(mark),
                            &mut Others::new(&mut fds),
                            None,
                            || come.load(Ordering::Relaxed) >= round,
                        );
                        match waited.expect("not forked") {
                            Waited::Descriptors(1) => {
                                assert_eq!(round % 3, 0);
                                (&mut &*ours).read_exact(&mut [0]).expect("a byte");
                            }
                            waited => assert_eq!(waited, Waited::Ready),
                        }
                        seen.store(round, Ordering::Release);
                    }
                });
            }
            for round in 1..=ROUNDS {
                for (mark, come, _, _, theirs) in &threads {
                    match round % 3 {
                        0 => (&mut &*theirs).write_all(b"x").expect("there is room"),
                        1 => {
                            come.store(round, Ordering::Relaxed);
                            side.runtime.raise(mark);
                        }
                        _ => {
                            come.store(round, Ordering::Relaxed);
                            let mark = Arc::clone(mark);
                            let raised = side.runtime.control(move |_, _, _| mark.raise());
                            raised.expect("not forked");
                        }
                    }
                }
                for (_, _, seen, ..) in &threads {
                    while seen.load(Ordering::Acquire) < round {
                        thread::yield_now();
                    }
                }
            }
        });
    }
}

/// A wake-up before a thread is on watch does not end its later sleep on the links. So the thread
/// must check again when it is on watch. Without this check, it would sleep until the time limit.
#[test]
fn a_thread_that_is_woken_just_before_it_takes_the_watch_does_not_sleep() {
    let side = with_polling(Polling::NEVER, false);
    let (mark, come) = (Arc::new(Mark::new()), AtomicBool::new(false));
    // In the second check, the thread is in the list of waiters. The other thread raises the mark
    // right after this check has found nothing.
    let check = |checks: &mut u32| {
        let has_come = come.load(Ordering::Relaxed);
        *checks += 1;
        if *checks == 2 {
            thread::scope(|scope| {
                scope.spawn(|| {
                    come.store(true, Ordering::Relaxed);
                    side.runtime.raise(&mark);
                });
            });
        }
        has_come
    };
    let sleeps = || side.runtime.counters().expect("not forked").wakeups;
    let before = sleeps();
    let limit = Some(Duration::from_secs(30));
    let (interest, mut checks) = (Interest::Mark(&mark), 0);
    let mut others = Others::none();
    let waited = side.runtime.wait_beside(interest, &mut others, limit, || check(&mut checks));
    assert_eq!(waited.expect("not forked"), Waited::Ready);

    come.store(false, Ordering::Relaxed);
    checks = 0;
    let waited = side.runtime.wait(interest, limit, || check(&mut checks).then_some(()));
    assert_eq!(waited.expect("not forked"), Some(()));
    assert_eq!(sleeps(), before, "the thread slept on the links");
}

/// One of the two threads sleeps on the links, and the other sleeps on a descriptor by which
/// threads wake it. A signal must end both sleeps.
#[test]
fn a_handled_signal_ends_the_sleep() {
    handle(libc::SIGUSR1);
    let side = Arc::new(with_polling(Polling::NEVER, true));
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let side = Arc::clone(&side);
            thread::spawn(move || {
                let mut others = Others::none();
                side.runtime.wait_beside(Interest::News, &mut others, None, || false)
            })
        })
        .collect();
    for thread in threads {
        while !thread.is_finished() {
            // SAFETY: the thread has not been joined.
            unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
            thread::yield_now();
        }
        let waited = thread.join().expect("no panic");
        assert!(matches!(waited, Err(WaitError::Interrupted)), "{waited:?}");
    }
}

#[test]
fn a_signal_unblocked_only_by_the_wait_ends_a_sleeping_or_spinning_wait() {
    handle(libc::SIGUSR2);
    for side in sides() {
        let mut set = MaybeUninit::uninit();
        // SAFETY: the sets are filled before they are used. This thread blocks the signal here, and
        // sends it to itself.
        let let_through = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGUSR2);
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2);
            libc::sigemptyset(set.as_mut_ptr());
            set.assume_init()
        };
        let mut others = Others::none().with_signals(&let_through);
        let waited = side.runtime.wait_beside(Interest::News, &mut others, None, || false);
        assert!(matches!(waited, Err(WaitError::Interrupted)), "{waited:?}");
    }
}

/// Installs a signal handler that does nothing.
fn handle(signal: libc::c_int) {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = nothing;
    // SAFETY: the handler does nothing, and each test has a signal of its own.
    unsafe { libc::signal(signal, handler as libc::sighandler_t) };
}
